"""GSM8K: grade-school word problems (Cobbe et al. 2021, arXiv 2110.14168)."""

from __future__ import annotations

from typing import Any

from grpo_lightning.data.columns import OTHER_FILES, check_limit, require_columns
from grpo_lightning.data.final_answers import number_answer
from grpo_lightning.data.hub import read_file_or_hub
from grpo_lightning.data.source import PromptSource
from grpo_lightning.errors import UserError
from grpo_lightning.rewards.accuracy import CALCULATION_NOTE, gsm8k_accuracy, gsm8k_gold
from grpo_lightning.types import RewardFunction


class GSM8K(PromptSource):
    """GSM8K as published, from the hub or from a JSON Lines file with ``question`` and ``answer``.

    Rows carry ``question``, ``answer`` (the bare number after ``####``), ``solution`` (the worked text without its
    ``<<48/2=24>>`` notes, ending in ``#### 72``) and ``published_answer`` (the text with its notes).

    Args:
        path: JSON Lines file; None takes the hub's data set.
        dataset: hub id.
        config: configuration of the hub's data set, ``main`` or ``socratic``.
        split: split of the hub's data set; a file is one split by itself.
        limit: only the first ``limit`` rows.
        name: name in metrics.
    """

    def __init__(
        self,
        path: str | None = None,
        *,
        dataset: str = "openai/gsm8k",
        config: str = "main",
        split: str = "train",
        limit: int | None = None,
        name: str = "gsm8k",
    ) -> None:
        self.path = path
        self.dataset = dataset
        self.config = config
        self.split = split
        self.limit = check_limit(limit)
        self.name = name

    def rows(self) -> list[dict[str, Any]]:
        where, table = read_file_or_hub(self.path, dataset=self.dataset, config=self.config, split=self.split)
        table = table[: self.limit]
        require_columns(table, ["question", "answer"], where=where, remedy=OTHER_FILES)
        return [_row(row, f"{where}, row {number}") for number, row in enumerate(table)]

    @property
    def correctness(self) -> RewardFunction:
        return gsm8k_accuracy

    def extract_answer(self, completion: str) -> str | None:
        return number_answer(completion)


def split_answer(published: str) -> tuple[str, str]:
    """A published answer as (bare number, worked text without notes that ends in ``#### number``).

    ``"48/2 = <<48/2=24>>24\\n#### 1,024"`` gives ``("1024", "48/2 = 24\\n#### 1024")``.

    Raises:
        ValueError: if there is no ``####`` with something behind it.
    """
    work, marker, _ = CALCULATION_NOTE.sub("", published).rpartition("####")
    number = gsm8k_gold(published).removeprefix("$")
    if not marker or not number:
        raise ValueError("no number after ####")
    work = work.strip()
    return number, f"{work}\n#### {number}" if work else f"#### {number}"


def _row(row: dict[str, Any], where: str) -> dict[str, Any]:
    try:
        answer, solution = split_answer(row["answer"])
    except (ValueError, TypeError) as error:
        raise UserError(
            f"{where}: the answer has no number after ####, as GSM8K has it; mend the row, or read the file with "
            "--data.source grpo_lightning.data.JsonLines"
        ) from error
    return {**row, "answer": answer, "solution": solution, "published_answer": row["answer"]}
