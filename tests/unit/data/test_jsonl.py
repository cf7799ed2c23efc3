from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from grpo_lightning.data.jsonl import JsonLines
from grpo_lightning.data.loading import read_rows
from grpo_lightning.errors import UserError


def _source(tmp_path: Path, text: str, **arguments: Any) -> JsonLines:
    path = tmp_path / "mine.jsonl"
    path.write_text(text, encoding="utf-8")
    return JsonLines(str(path), **arguments)


def test_columns_are_renamed_and_the_others_kept(tmp_path: Path) -> None:
    text = (
        '\ufeff{"prompt": "Q", "gold": 4, "work": "2+2", "topic": "sums"}\n\n{"prompt": "R", "gold": "5", "work": ""}\n'
    )
    source = _source(tmp_path, text, question_column="prompt", answer_column="gold", solution_column="work")
    first, second = source.rows()
    assert (first["question"], first["answer"], first["solution"], first["topic"]) == ("Q", "4", "2+2", "sums")
    assert (second["answer"], second["topic"]) == ("5", None)
    assert source.name == "mine"


def test_one_list_of_objects_is_read_too(tmp_path: Path) -> None:
    source = _source(
        tmp_path, '\n[\n  {"question": "Q", "answer": 4},\n  {"question": "R", "answer": "5", "topic": "s"}\n]'
    )
    first, second = source.rows()
    assert (first["question"], first["answer"], first["topic"]) == ("Q", "4", None)
    assert (second["question"], second["answer"], second["topic"]) == ("R", "5", "s")


def test_messages_and_line_separators_inside_strings_survive(tmp_path: Path) -> None:
    text = '{"question": [{"role": "user", "content": "a\u2028b"}], "answer": "1"}\n'
    assert _source(tmp_path, text).rows()[0]["question"] == [{"role": "user", "content": "a\u2028b"}]


def test_letter_is_taken_from_a_full_solution(tmp_path: Path) -> None:
    row = r'{"question": "Q", "answer": "Not \\boxed{A}. <answer>\n\\boxed{C}\n</answer>"}'
    assert _source(tmp_path, row, answer_pattern=r"\\boxed\{([A-D])\}").rows()[0]["answer"] == "C"
    with pytest.raises(UserError, match=r"line 1: --data.source.answer_pattern '#\+' finds nothing"):
        _source(tmp_path, row, answer_pattern="#+").rows()
    with pytest.raises(UserError, match="not a regular expression"):
        _source(tmp_path, row, answer_pattern="(")


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("", {}, "has no rows"),
        ("\n \n", {}, "has no rows"),
        ('{"a": 1}\n{', {}, "line 2 is not JSON"),
        ('{"a": 1}\n[1]\n', {}, "line 2 holds list"),
        ('[{"question": "Q", "answer": "1"}, 1]', {}, "entry 2 holds int"),
        ('[{"question": "Q"},\n', {}, "is not JSON"),
        (
            '{"a": 1, "b": 2}',
            {},
            r"no column 'question', only a, b; name the right one by --data\.source\.question_column",
        ),
        ('{"question": "Q", "b": 2}', {}, "no column 'answer'"),
        ('{"question": "Q", "answer": "1"}', {"solution_column": "work"}, "no column 'work'"),
        ('{"question": "Q", "answer": null}', {}, "line 1: column 'answer' holds None"),
        ('{"question": "Q", "answer": "1"}\n\n{"question": "Q", "answer": " "}', {}, "line 3: column 'answer'"),
        ('[{"question": "Q", "answer": "1"}, {"question": "Q"}]', {}, "entry 2: column 'answer' holds None"),
    ],
)
def test_faults_name_place_and_remedy(tmp_path: Path, text: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        _source(tmp_path, text, **arguments).rows()
    assert "\n" not in str(caught.value)


def test_a_question_is_refused_by_its_line(tmp_path: Path) -> None:
    text = '{"question": "Q", "answer": "1"}\n\n{"question": "", "answer": "1"}\n'
    with pytest.raises(UserError, match=r"--data\.source mine, line 3: the question is"):
        read_rows(_source(tmp_path, text))


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        JsonLines(str(tmp_path / "nothing.jsonl")).rows()
    with pytest.raises(UserError, match="cannot be read"):
        JsonLines(str(tmp_path)).rows()


def test_limit(tmp_path: Path) -> None:
    text = "".join(f'{{"question": "{i}", "answer": "{i}"}}\n' for i in range(5))
    assert len(_source(tmp_path, text, limit=2).rows()) == 2
    with pytest.raises(UserError, match=r"--data\.source\.limit is 0"):
        _source(tmp_path, text, limit=0)


def test_own_correctness(tmp_path: Path) -> None:
    def always(**_: Any) -> list[float | None]:
        return [1.0]

    assert _source(tmp_path, "", correctness=always).correctness is always
