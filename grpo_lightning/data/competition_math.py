"""Competition mathematics: MATH (Hendrycks et al. 2021, arXiv 2103.03874) and MATH-500."""

from __future__ import annotations

import logging
import re
from typing import Any

from grpo_lightning.data.columns import OTHER_FILES, check_limit, require_columns
from grpo_lightning.data.final_answers import formula_answer
from grpo_lightning.data.hub import read_file_or_hub
from grpo_lightning.data.source import PromptSource
from grpo_lightning.errors import UserError
from grpo_lightning.rewards.accuracy import math_accuracy
from grpo_lightning.rewards.answers.extraction import boxed_answer
from grpo_lightning.types import RewardFunction

log = logging.getLogger(__name__)


class CompetitionMath(PromptSource):
    r"""MATH or MATH-500, from the hub or from a JSON Lines file with ``problem``, ``solution``, ``level``.

    The gold is the content of the solution's last ``\boxed``, braces balanced; a row without one falls back on its
    ``answer`` column, and a row without either is left out and counted in the log. Rows carry ``question``, ``answer``,
    ``solution``, ``level`` (1 to 5, None if the data do not say) and ``subject`` (named ``type`` in some copies).

    Args:
        path: JSON Lines file; None takes the hub's data set.
        dataset: hub id: MATH by default, ``HuggingFaceH4/MATH-500`` for MATH-500.
        config: configuration of the hub's data set, where it has several.
        split: split of the hub's data set (MATH-500 has only ``test``); a file is one split by itself.
        levels: only problems of these levels; None takes all.
        limit: only the first ``limit`` rows.
        name: name in metrics.
    """

    def __init__(
        self,
        path: str | None = None,
        *,
        dataset: str = "DigitalLearningGmbH/MATH-lighteval",
        config: str | None = None,
        split: str = "train",
        levels: list[int] | None = None,
        limit: int | None = None,
        name: str = "math",
    ) -> None:
        self.path = path
        self.dataset = dataset
        self.config = config
        self.split = split
        self.levels = levels
        self.limit = check_limit(limit)
        self.name = name

    def rows(self) -> list[dict[str, Any]]:
        where, table = read_file_or_hub(self.path, dataset=self.dataset, config=self.config, split=self.split)
        require_columns(table, ["problem", "solution"], where=where, remedy=OTHER_FILES)
        rows = [_row(row) for row in table]
        if self.levels is not None:
            rows = [row for row in rows if row["level"] in self.levels]
        golden = [row for row in rows if row["answer"]]
        if len(golden) < len(rows):
            log.warning(
                "%s: %d of %d problems have no answer and are left out", where, len(rows) - len(golden), len(rows)
            )
        if not golden:
            raise UserError(f"{where} has no problem with an answer at --data.source.levels {self.levels}; change one")
        return golden[: self.limit]

    @property
    def correctness(self) -> RewardFunction:
        return math_accuracy

    def extract_answer(self, completion: str) -> str | None:
        return formula_answer(completion)


def _row(row: dict[str, Any]) -> dict[str, Any]:
    boxed = boxed_answer(row["solution"] or "")
    return {
        **row,
        "question": row["problem"],
        "answer": (boxed[1] if boxed else "") or row.get("answer"),
        "level": _level(row.get("level")),
        "subject": row.get("subject") or row.get("type"),
    }


def _level(published: Any) -> int | None:
    """``5`` or ``"Level 5"`` as 5; None for ``"Level ?"``, which a few problems of MATH have."""
    digits = re.search(r"\d+", str(published))
    return int(digits.group()) if digits else None
