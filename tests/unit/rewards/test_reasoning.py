"""Steps, keywords and words, by hand."""

from __future__ import annotations

import pytest

from grpo_lightning.errors import UserError
from grpo_lightning.rewards import (
    ReasoningKeywords,
    reasoning_length,
    reasoning_steps,
    reasoning_steps_as_published,
)
from tests.unit.rewards.trl_form import check


def think(text: str) -> str:
    return f"<reasoning>\n{text}\n</reasoning>\n<answer>\nA\n</answer>"


def test_reasoning_steps():
    table = {
        "Step 1: a Step 2: b": 2 / 3,
        "First, a. Second, b. Next, c. Finally, d.": 1.0,
        "1. a": 1 / 3,
        "So:\n- a\n* b": 2 / 3,
        "step 1: first, second, 3.5 - 2": 0.0,
        "": 0.0,
    }
    check(reasoning_steps, {**table, "1. a\n2. b\n3. c": 1.0, "So:\n1. a\n2. b": 2 / 3, "- a": 1 / 3})
    check(reasoning_steps_as_published, {**table, "1. a\n2. b\n3. c": 1 / 3, "So:\n1. a\n2. b": 0.0, "- a": 0.0})


def test_reasoning_length():
    check(
        reasoning_length,
        {
            think("a " * 19): 0.0,
            think("a " * 20): 0.25,
            think("a " * 49): 0.25,
            think("a " * 50): 0.5,
            think("a " * 99): 0.5,
            think("a " * 100): 0.75,
            f"<think>{'a ' * 50}</think>": 0.5,
            think("因" * 50): 0.5,
            "a " * 100: 0.0,
            "<reasoning>" + "a " * 100: 0.0,
            "": 0.0,
        },
    )


def test_reasoning_keywords():
    table = {
        think("Row 1 and the columns sum to nine."): 0.3,
        think("row row row"): 0.1,
        think("row, column, sum, unique, digit, no repeat, clue"): 0.5,
        think("The clues: unique digits, no repeats."): 0.4,
        think("a clue"): 0.1,
        think("nothing"): 0.0,
        "row column sum": 0.0,
        "<reasoning>row</reasoning> column": 0.1,
        "": 0.0,
    }
    check(ReasoningKeywords(), {**table, think("I assume they grow."): 0.0})
    check(ReasoningKeywords(variant="as_published"), {**table, think("I assume they grow."): 0.2})
    check(
        ReasoningKeywords(keywords=["Cash flow", "risk"], each=0.25, most=0.4),
        {think("cash flow at RISK"): 0.4, think("risky"): 0.0, think("cash flows"): 0.25},
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"keywords": []}, "keywords"),
        ({"keywords": "row"}, "keywords"),
        ({"variant": "published"}, "variant 'published'"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(UserError, match=message):
        ReasoningKeywords(**settings)
