"""Answers between tags, by hand."""

from __future__ import annotations

import pytest

from grpo_lightning.rewards import (
    exact_answer,
    exact_answer_as_published,
    integer_answer,
    integer_answer_as_published,
    multiple_choice,
)
from tests.unit.rewards.trl_form import check


def inside(answer: str) -> str:
    return f"<reasoning>\na\n</reasoning>\n<answer>\n{answer}\n</answer>\n"


def test_exact_answer():
    check(
        exact_answer,
        {
            inside("1234"): 2.0,
            inside("1,234"): 2.0,
            inside("1234.0"): 2.0,
            inside("4321"): 0.0,
            inside("12"): 0.0,
            inside("1 234 or 5"): 0.0,
            "<answer>1234</answer> <answer>5</answer>": 0.0,
            "<answer>5</answer> <answer>1234</answer>": 2.0,
            "<answer>1234": 0.0,
            "1234</answer>": 0.0,
            "1234": 0.0,
            "": 0.0,
        },
        answer="48/2 = 24\n#### 1234",
    )
    check(
        exact_answer,
        {inside("1/2"): 2.0, inside("\\frac{1}{2}"): 2.0, inside(".5"): 2.0, inside("2"): 0.0},
        answer="0.5",
    )
    check(exact_answer, {inside("north"): 2.0, inside("North"): 0.0, inside("1"): 0.0}, answer="north")
    check(exact_answer, {inside(""): None, inside("1"): None}, answer="####")


def test_exact_answer_as_published_compares_texts():
    check(
        exact_answer_as_published,
        {
            inside("1234"): 2.0,
            inside("1,234"): 0.0,
            inside("1234.0"): 0.0,
            "<answer>1234": 2.0,
            "1234": 2.0,
            "<answer>1234</answer> <answer>": 0.0,
            "": 0.0,
        },
        answer="#### 1234",
    )
    check(exact_answer_as_published, {inside("1/2"): 0.0, inside("0.5"): 2.0}, answer="0.5")


def test_integer_answer():
    table = {
        inside("12"): 0.5,
        inside("-12"): 0.5,
        inside("\u221212"): 0.5,
        inside("1,234"): 0.5,
        inside("12,34"): 0.0,
        inside("1.0"): 0.0,
        inside("12 cows"): 0.0,
        inside("²"): 0.0,
        inside(""): 0.0,
        "12": 0.0,
        "": 0.0,
    }
    check(integer_answer, table)
    published = {inside("-12"): 0.0, inside("\u221212"): 0.0, inside("1,234"): 0.0, inside("²"): 0.5, "12": 0.5}
    check(integer_answer_as_published, {**table, **published})


@pytest.mark.parametrize("gold", ["B", "(B)", " B. ", "We rule out \\boxed{A}, so <answer>\n\\boxed{B}\n</answer>"])
def test_multiple_choice(gold):
    check(
        multiple_choice,
        {
            inside("\\boxed{B}"): 2.0,
            inside("It is \\boxed{ B }."): 2.0,
            inside("\\boxed{C}"): 0.0,
            inside("B"): 0.0,
            inside("\\boxed{A} or \\boxed{B}"): 0.0,
            inside("\\boxed{B}, yes, \\boxed{B}"): 2.0,
            "\\boxed{B}": 0.0,
            "<answer>\\boxed{B}": 0.0,
            "<answer>\\boxed{A}</answer><answer>\\boxed{B}</answer>": 2.0,
            "": 0.0,
        },
        answer=gold,
    )


def test_a_gold_without_a_letter_does_not_apply():
    check(multiple_choice, {inside("\\boxed{B}"): None}, answer="Bob did it")
    check(multiple_choice, {inside("\\boxed{E}"): None}, answer="E")
    check(multiple_choice, {inside("\\boxed{D}"): 2.0}, answer="D")


def test_marks():
    for reward in (exact_answer, exact_answer_as_published, multiple_choice):
        assert reward.best == 2.0
        assert reward.inline
    assert not hasattr(integer_answer, "best")
