from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from grpo_lightning.data.competition_math import CompetitionMath
from grpo_lightning.errors import UserError

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"


def _source(tmp_path: Path, *rows: dict[str, Any], **arguments: Any) -> CompetitionMath:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"problem": "P", "level": "Level 3", **row}) + "\n" for row in rows))
    return CompetitionMath(str(path), **arguments)


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        (r"so $\boxed{\frac{\sqrt{3}}{2}}$.", r"\frac{\sqrt{3}}{2}"),
        (r"first \boxed{1}, then \boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"hence \boxed 7 apples", "7"),
        (r"\fbox{x+1}", "x+1"),
    ],
)
def test_gold_is_the_last_box_with_its_nested_braces(tmp_path: Path, solution: str, answer: str) -> None:
    assert _source(tmp_path, {"solution": solution}).rows()[0]["answer"] == answer


def test_both_spellings_of_level_and_subject(tmp_path: Path) -> None:
    box = {"solution": r"\boxed{1}"}
    source = _source(
        tmp_path, {**box, "type": "Algebra"}, {**box, "level": 5, "subject": "Geometry"}, {**box, "level": "Level ?"}
    )
    assert [(row["level"], row["subject"]) for row in source.rows()] == [(3, "Algebra"), (5, "Geometry"), (None, None)]


def test_levels_are_chosen_before_the_limit(tmp_path: Path) -> None:
    rows = [{"solution": rf"\boxed{{{i}}}", "level": i % 2 + 1} for i in range(6)]
    source = _source(tmp_path, *rows, levels=[2], limit=2)
    assert [row["answer"] for row in source.rows()] == ["1", "3"]


def test_rows_without_gold_are_counted_and_the_answer_column_helps_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{"solution": "none"}, {"solution": "none", "answer": "4"}, {"solution": r"cut \boxed{\frac{1"}]
    with caplog.at_level(logging.WARNING):
        assert [row["answer"] for row in _source(tmp_path, *rows).rows()] == ["4"]
    assert "2 of 3 problems have no answer" in caplog.text


def test_no_problem_left_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"levels \[5\]"):
        _source(tmp_path, {"solution": r"\boxed{1}"}, levels=[5]).rows()


def test_equal_answers_are_equal_strings() -> None:
    texts = [r"\boxed{\dfrac34}", r"so \boxed{ \frac{3}{4} }", r"The answer is $\tfrac{3}{4}$."]
    assert len({CompetitionMath().extract_answer(text) for text in texts}) == 1
    assert (
        CompetitionMath().extract_answer(r"\boxed{1,250.0}")
        == CompetitionMath().extract_answer(r"\boxed{1250}")
        == "1250"
    )


@pytest.mark.skipif(not SHARED.is_dir(), reason="the published file is not beside the checkout")
def test_math500() -> None:
    rows = CompetitionMath(str(SHARED / "math500.jsonl"), name="math500").rows()
    published = [json.loads(line) for line in (SHARED / "math500.jsonl").read_text().splitlines()]
    assert len(rows) == 500
    assert {row["level"] for row in rows} == {1, 2, 3, 4, 5}
    same = sum(
        row["answer"].replace(" ", "") == p["answer"].replace(" ", "") for row, p in zip(rows, published, strict=True)
    )
    assert same >= 495, same
