"""Data sets of the Hugging Face hub."""

from __future__ import annotations

from typing import Any

from grpo_lightning.data.columns import ColumnSource
from grpo_lightning.data.jsonl import read_json_lines
from grpo_lightning.errors import UserError, in_one_line
from grpo_lightning.types import RewardFunction


class HubDataset(ColumnSource):
    """Any data set that ``datasets.load_dataset`` opens: a hub id, or a local folder.

    Args:
        dataset: hub id, ``owner/name``, or folder.
        config: configuration of the data set, where it has several.
        split: ``train``, ``test``, or a slice such as ``train[:90%]``.
        question_column: column with the question: text, or a list of chat messages that ends with the user's.
        answer_column: column with the gold answer.
        answer_pattern: regular expression that finds the gold inside ``answer_column``: its last match counts, and in
            it the first group if there is one. None takes the whole text.
        solution_column: column with a worked-out solution; None if there is none.
        limit: only the first ``limit`` rows.
        name: name in metrics; None takes the last part of the id.
        correctness: dotted path of the reward function that says whether a completion is right; None means
            ``grpo_lightning.rewards.math_accuracy``.
    """

    def __init__(
        self,
        dataset: str,
        *,
        config: str | None = None,
        split: str = "train",
        question_column: str = "question",
        answer_column: str = "answer",
        answer_pattern: str | None = None,
        solution_column: str | None = None,
        limit: int | None = None,
        name: str | None = None,
        correctness: RewardFunction | None = None,
    ) -> None:
        super().__init__(
            name=name or dataset.rstrip("/").rpartition("/")[2].lower(),
            question_column=question_column,
            answer_column=answer_column,
            answer_pattern=answer_pattern,
            solution_column=solution_column,
            limit=limit,
            correctness=correctness,
        )
        self.dataset = dataset
        self.config = config
        self.split = split

    @property
    def where(self) -> str:
        return f"--data.source.dataset {self.dataset}"

    def table(self) -> list[dict[str, Any]]:
        return read_hub_rows(self.dataset, config=self.config, split=self.split)


def read_hub_rows(dataset: str, *, config: str | None, split: str) -> list[dict[str, Any]]:
    """All rows of one split, downloaded on first use.

    Raises:
        UserError: if the data set, its configuration or the split cannot be had.
    """
    import datasets

    try:
        loaded = datasets.load_dataset(dataset, config, split=split)
    except Exception as error:  # whatever the hub, the network or the split's name may raise
        reason = in_one_line(error)
        raise UserError(
            f"--data.source.dataset {dataset} (config {config}, split {split}) cannot be loaded: {reason}; check the "
            "three names and the network, or give a file by --data.source.path"
        ) from error
    return [dict(row) for row in loaded]


def read_file_or_hub(
    path: str | None, *, dataset: str, config: str | None, split: str
) -> tuple[str, list[dict[str, Any]]]:
    """A published data set from a JSON Lines file, or without one from the hub.

    Args:
        path: JSON Lines file; None takes the hub's data set.
        dataset: hub id.
        config: configuration of the hub's data set, where it has several.
        split: split of the hub's data set.

    Returns:
        The flag that names the table, for messages, and its rows.
    """
    if path is not None:
        return f"--data.source.path {path}", read_json_lines(path)
    return f"--data.source.dataset {dataset}", read_hub_rows(dataset, config=config, split=split)
