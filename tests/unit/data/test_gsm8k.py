from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from grpo_lightning.data.gsm8k import GSM8K, split_answer
from grpo_lightning.errors import UserError

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"


def _file(tmp_path: Path, *answers: str) -> str:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"question": f"Q{i}", "answer": a}) + "\n" for i, a in enumerate(answers)))
    return str(path)


def test_notes_and_thousands_marks_are_removed() -> None:
    answer, solution = split_answer(
        "He has 2*600 = <<2*600=1200>>1,200 eggs.\nSo 1,200+34 = <<1200+34=1234>>1,234.\n#### 1,234"
    )
    assert answer == "1234"
    assert solution == "He has 2*600 = 1,200 eggs.\nSo 1,200+34 = 1,234.\n#### 1234"


@pytest.mark.parametrize(
    ("published", "answer"),
    [("#### $18", "18"), ("a\n####   -5 ", "-5"), ("#### 23\nno\n#### 24", "24"), ("#### 0.5", "0.5")],
)
def test_number_after_the_last_marker(published: str, answer: str) -> None:
    assert split_answer(published)[0] == answer


def test_rows_carry_question_answer_solution_and_the_published_text(tmp_path: Path) -> None:
    source = GSM8K(_file(tmp_path, "1+1=<<1+1=2>>2\n#### 2", "#### 3"), limit=1)
    assert source.rows() == [
        {"question": "Q0", "answer": "2", "solution": "1+1=2\n#### 2", "published_answer": "1+1=<<1+1=2>>2\n#### 2"}
    ]


@pytest.mark.parametrize("published", ["no marker", "#### ", ""])
def test_answer_without_number_is_refused_with_its_row(tmp_path: Path, published: str) -> None:
    with pytest.raises(UserError, match=r"row 1: the answer has no number after ####"):
        GSM8K(_file(tmp_path, "#### 1", published)).rows()


def test_other_columns_are_refused_with_what_to_use_instead(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"problem": "Q", "answer": "1"}')
    with pytest.raises(UserError, match=r"no column 'question', only problem, answer; read data .*JsonLines"):
        GSM8K(str(path)).rows()


def test_extracted_answers_are_equal_strings_when_equal() -> None:
    texts = ["#### 1,234", "so #### $1234.00", "\\boxed{1234}", "The answer is 1234 eggs."]
    assert {GSM8K().extract_answer(text) for text in texts} == {"1234"}
    assert GSM8K().extract_answer("I do not know") is None


@pytest.mark.skipif(not SHARED.is_dir(), reason="the published files are not beside the checkout")
@pytest.mark.parametrize(("split", "rows"), [("train", 7473), ("test", 1319)])
def test_published_files(split: str, rows: int) -> None:
    table = GSM8K(str(SHARED / f"gsm8k_{split}.jsonl")).rows()
    assert len(table) == rows
    for row in table:
        assert re.fullmatch(r"-?\d+(\.\d+)?", row["answer"]), row
        assert row["solution"].endswith(f"\n#### {row['answer']}")
        assert "<<" not in row["solution"]
