from __future__ import annotations

import logging
from typing import Any

import pytest

from grpo_lightning.data.loading import build_prompts, read_rows, without_questions
from grpo_lightning.data.source import PromptSource
from grpo_lightning.data.templates import PromptTemplate
from grpo_lightning.errors import UserError
from grpo_lightning.types import RewardFunction
from tests.unit.data.character_tokenizer import letters

RAW = PromptTemplate(layout="{question}", answer_format="none")


class Listed(PromptSource):
    """Questions given as a list."""

    def __init__(self, *questions: Any, name: str = "listed", **columns: Any) -> None:
        self.name = name
        self._rows = [{"question": question, "answer": "1", **columns} for question in questions]

    def rows(self) -> list[dict[str, Any]]:
        return self._rows

    @property
    def correctness(self) -> RewardFunction:
        raise NotImplementedError

    def extract_answer(self, completion: str) -> str | None:
        return completion


def _build(*questions: str, limit: int = 32, **arguments: Any) -> Any:
    rows = read_rows(Listed(*questions))
    return build_prompts(rows, template=RAW, tokenizer=letters(), source="listed", max_prompt_length=limit, **arguments)


def test_prompts_over_the_limit_are_found_counted_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        loaded = _build(*("x" * length for length in (20, 32, 33, 500)))
    assert [len(prompt.token_ids) for prompt in loaded.prompts] == [20, 32]
    assert [prompt.row for prompt in loaded.prompts] == [0, 1]
    assert (loaded.lengths, loaded.too_long) == ([20, 32, 33, 500], 2)
    assert "2 of 4 prompts are longer than --data.max_prompt_length 32" in caplog.text
    assert "longest: 500 tokens" in caplog.text


def test_special_tokens_count(caplog: pytest.LogCaptureFixture) -> None:
    rows = read_rows(Listed("x" * 32, "x" * 31))
    loaded = build_prompts(
        rows, template=RAW, tokenizer=letters(bos=True), source="s", max_prompt_length=32, report=False
    )
    assert ([prompt.row for prompt in loaded.prompts], loaded.too_long, caplog.text) == ([1], 1, "")


def test_two_beginnings_are_refused_and_one_is_not() -> None:
    rows = read_rows(Listed("x", "y"))
    arguments = {"tokenizer": letters(bos=True), "source": "listed", "max_prompt_length": 32}
    once = PromptTemplate(layout="<s>{question}", answer_format="none")
    assert [p.token_ids[:2].count(2) for p in build_prompts(rows, template=once, **arguments).prompts] == [1, 1]
    twice = PromptTemplate(layout="<s><s>{question}", answer_format="none")
    with pytest.raises(UserError, match=r"row 0 of listed begins with two <s> tokens.*--data.template.layout"):
        build_prompts(rows, template=twice, **arguments)


def test_all_too_long_is_an_error_with_the_lengths() -> None:
    with pytest.raises(UserError, match=r"all 2 prompts .* shortest has 33 tokens, the longest 40; raise the limit"):
        _build("x" * 33, "x" * 40)


def test_the_same_question_twice_stays_two_prompts() -> None:
    first, second = _build("same", "same").prompts
    assert first is not second
    assert (first.row, second.row) == (0, 1)


def test_a_question_the_tokenizer_cannot_read_is_refused() -> None:
    from grpo_lightning.data.arithmetic import build_tokenizer

    with pytest.raises(UserError, match=r"row 0: the tokenizer of --model.policy knows no character of 'xyz'"):
        build_prompts(
            read_rows(Listed("xyz")), template=RAW, tokenizer=build_tokenizer(), source="s", max_prompt_length=9
        )


def test_without_questions_compares_text_not_white_space() -> None:
    messages = [{"role": "user", "content": "c"}]
    rows = read_rows(Listed("a  b", "c", messages, "a b", "d"))
    others = read_rows(Listed(" a b\n", [{"role": "user", "content": "c"}]))
    assert [row.number for row in without_questions(rows, others)] == [1, 4]


@pytest.mark.parametrize(
    "question", ["", "  ", None, 5, [], [{"role": "user"}], ["a"], [{"role": "assistant", "content": "a"}]]
)
def test_malformed_questions_are_refused_with_their_row(question: Any) -> None:
    with pytest.raises(UserError, match="row 1: the question is"):
        read_rows(Listed("fine", question))


@pytest.mark.parametrize("column", ["completions", "trainer_state", "log_metric", "log_extra"])
def test_a_column_that_a_keyword_of_rewards_would_hide_is_refused(column: str) -> None:
    with pytest.raises(UserError, match=f"row 0 has a column '{column}'.*; rename the column"):
        read_rows(Listed("a", **{column: "b"}))


def test_missing_question_and_empty_source() -> None:
    source = Listed("a")
    source._rows = [{"text": "a", "answer": "1"}]
    with pytest.raises(UserError, match="no column 'question'; its columns are: text, answer"):
        read_rows(source)
    with pytest.raises(UserError, match="listed has no rows"):
        read_rows(Listed())
