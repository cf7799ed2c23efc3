"""From a table with columns of any name to rows with ``question``, ``answer`` and ``solution``."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from grpo_lightning.data.final_answers import formula_answer
from grpo_lightning.data.source import PromptSource
from grpo_lightning.errors import UserError
from grpo_lightning.rewards.accuracy import math_accuracy
from grpo_lightning.types import RewardFunction

OTHER_FILES = "read data of another layout with --data.source grpo_lightning.data.JsonLines or HubDataset"
"""What to do where a source of fixed columns meets other columns."""


class ColumnSource(PromptSource):
    """A table whose columns are named by the user; subclasses say where the table comes from.

    Args:
        name: short name used in metrics.
        question_column: column with the question: text, or a list of chat messages that ends with the user's.
        answer_column: column with the gold answer.
        answer_pattern: regular expression that finds the gold inside ``answer_column``: its last match counts, and in
            it the first group if there is one. None takes the whole text.
        solution_column: column with a worked-out solution; None if there is none.
        limit: only the first ``limit`` rows.
        correctness: reward function that says whether a completion is right; None means ``math_accuracy``.
    """

    def __init__(
        self,
        *,
        name: str,
        question_column: str,
        answer_column: str,
        answer_pattern: str | None,
        solution_column: str | None,
        limit: int | None,
        correctness: RewardFunction | None,
    ) -> None:
        self.name = name
        self.question_column = question_column
        self.answer_column = answer_column
        self.solution_column = solution_column
        self.limit = check_limit(limit)
        try:
            self._pattern = re.compile(answer_pattern) if answer_pattern else None
        except re.error as error:
            raise UserError(
                f"--data.source.answer_pattern {answer_pattern!r} is not a regular expression ({error}); mend it"
            ) from error
        self._correctness = correctness

    @property
    @abstractmethod
    def where(self) -> str:
        """The table, as an error message should name it."""

    @abstractmethod
    def table(self) -> Sequence[dict[str, Any]]:
        """The table's rows, each with every column."""

    def rows(self) -> list[dict[str, Any]]:
        table = self.table()[: self.limit]
        for role in ("question", "answer", "solution"):
            column = getattr(self, f"{role}_column")
            if column is not None:
                remedy = f"name the right one by --data.source.{role}_column"
                require_columns(table, [column], where=self.where, remedy=remedy)
        rows = []
        for number, row in enumerate(table):
            picked = {**row, "question": row[self.question_column], "answer": self._gold(row, number)}
            if self.solution_column:
                picked["solution"] = row[self.solution_column]
            rows.append(picked)
        return rows

    def _gold(self, row: dict[str, Any], number: int) -> str:
        value, where = row[self.answer_column], f"{self.where}, {self.place(number)}"
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str) or not value.strip():
            raise UserError(
                f"{where}: column {self.answer_column!r} holds {value!r} instead of an answer text; "
                "mend the row, or name another --data.source.answer_column"
            )
        if self._pattern is None:
            return value.strip()
        matches = list(self._pattern.finditer(value))
        if not matches:
            raise UserError(
                f"{where}: --data.source.answer_pattern {self._pattern.pattern!r} finds nothing in "
                f"column {self.answer_column!r}; mend the pattern or the row"
            )
        return (matches[-1].group(1) if self._pattern.groups else matches[-1].group()).strip()

    @property
    def correctness(self) -> RewardFunction:
        if self._correctness is not None:
            return self._correctness
        return math_accuracy

    def extract_answer(self, completion: str) -> str | None:
        return formula_answer(completion)


def require_columns(rows: Sequence[dict[str, Any]], columns: Sequence[str], *, where: str, remedy: str) -> None:
    """Refuse a table without rows or without one of the columns.

    Args:
        rows: the table.
        columns: what it must have.
        where: the table, for the message.
        remedy: what to do if a column is missing, for the message.

    Raises:
        UserError: naming the column, the columns that exist and the remedy.
    """
    if not rows:
        raise UserError(f"{where} has no rows; give --data.source a data set that is not empty")
    for column in columns:
        if column not in rows[0]:
            raise UserError(f"{where} has no column {column!r}, only {', '.join(rows[0])}; {remedy}")


def check_limit(limit: int | None) -> int | None:
    """``limit`` itself.

    Raises:
        UserError: if it is not at least 1.
    """
    if limit is not None and limit < 1:
        raise UserError(f"--data.source.limit is {limit}; give at least 1, or leave it out for all rows")
    return limit
