"""Your own prompts: a file with one JSON object a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from grpo_lightning.data.columns import ColumnSource
from grpo_lightning.errors import UserError
from grpo_lightning.types import RewardFunction


class JsonLines(ColumnSource):
    """Rows of a JSON Lines file, or of a JSON file that is one list of objects.

    Args:
        path: the file.
        question_column: column with the question: text, or a list of chat messages that ends with the user's.
        answer_column: column with the gold answer.
        answer_pattern: regular expression that finds the gold inside ``answer_column``: its last match counts, and in
            it the first group if there is one. ``\\\\boxed\\{([A-D])\\}`` takes the letter from a full solution. None
            takes the whole text.
        solution_column: column with a worked-out solution; None if there is none.
        limit: only the first ``limit`` rows.
        name: name in metrics; None takes the file's name.
        correctness: dotted path of the reward function that says whether a completion is right; None means
            ``grpo_lightning.rewards.math_accuracy``.
    """

    def __init__(
        self,
        path: str,
        *,
        question_column: str = "question",
        answer_column: str = "answer",
        answer_pattern: str | None = None,
        solution_column: str | None = None,
        limit: int | None = None,
        name: str | None = None,
        correctness: RewardFunction | None = None,
    ) -> None:
        super().__init__(
            name=name or Path(path).stem,
            question_column=question_column,
            answer_column=answer_column,
            answer_pattern=answer_pattern,
            solution_column=solution_column,
            limit=limit,
            correctness=correctness,
        )
        self.path = path
        self._places: list[str] = []

    @property
    def where(self) -> str:
        return f"--data.source.path {self.path}"

    def table(self) -> list[dict[str, Any]]:
        self._places, rows = _placed(self.path)
        return rows

    def place(self, number: int) -> str:
        return self._places[number] if self._places else super().place(number)  # a subclass may have another table


def read_json_lines(path: str) -> list[dict[str, Any]]:
    """The objects of a JSON Lines file, or of a JSON file that is one list of them.

    Blank lines are skipped; a column that some rows lack is None there.

    Raises:
        UserError: if the file is missing or unreadable, or a row is not a JSON object.
    """
    return _placed(path)[1]


def _placed(path: str) -> tuple[list[str], list[dict[str, Any]]]:
    """Where each row stands, "line 3" counted from 1 as editors do, and the rows."""
    where = f"--data.source.path {path}"
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise UserError(f"{where}: there is no such file; give the path of a JSON Lines file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{where} cannot be read ({error}); give a JSON Lines file in UTF-8") from error
    found = _listed(text, where) if text.lstrip().startswith("[") else _lines(text, where)
    columns = dict.fromkeys(column for row in found.values() for column in row)
    return list(found), [{column: row.get(column) for column in columns} for row in found.values()]


def _lines(text: str, where: str) -> dict[str, dict[str, Any]]:
    rows = {}
    # Not str.splitlines: it also splits at characters that may stand inside a JSON string, such as U+2028.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{where}, line {number} is not JSON ({error}); write one object a line") from error
        rows[f"line {number}"] = _object(row, f"{where}, line {number}")
    return rows


def _listed(text: str, where: str) -> dict[str, dict[str, Any]]:
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{where} is not JSON ({error}); write one object a line, or one list of objects") from error
    return {f"entry {number}": _object(row, f"{where}, entry {number}") for number, row in enumerate(rows, start=1)}


def _object(row: Any, where: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise UserError(f"{where} holds {type(row).__name__} instead of an object; mend it")
    return row
