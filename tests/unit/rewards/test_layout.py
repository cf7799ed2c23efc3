"""Which texts keep the layout, by hand."""

from __future__ import annotations

import itertools
import re

import pytest

from grpo_lightning.errors import UserError
from grpo_lightning.rewards import (
    CodeFormat,
    choice_format_soft,
    choice_format_strict,
    reasoning_format_soft,
    reasoning_format_soft_as_published,
    reasoning_format_strict,
    think_answer_format,
    think_answer_format_strict,
    think_format,
)
from tests.unit.rewards.trl_form import check

THINK = "<think>\na\nb\n</think>\n<answer>\n4\n</answer>"
REASONING = "<reasoning>\na\nb\n</reasoning>\n<answer>\n4\n</answer>\n"
CHOICE = "<reasoning>\na\nb\n</reasoning>\n<answer>\n\\boxed{B}\n</answer>"
CODE = "<think>\na\n</think>\n<answer>\nso:\n```python\nx = 1\n```\n</answer>"


def test_think_format():
    check(
        think_format,
        {
            "<think>a\n</think>\nb": 1.0,
            "\n<think>a</think>": 1.0,
            THINK: 1.0,
            "b<think>a</think>": 0.0,
            "<think>a<think>b</think>": 0.0,
            "<think>a</think>b</think>": 0.0,
            "<think>a": 0.0,
            "": 0.0,
        },
    )


def test_think_answer_format():
    good = "<think>a\nb</think>\n<answer>4</answer>"
    check(
        think_answer_format,
        {
            good: 1.0,
            f"\n{good}\n": 1.0,
            "<think></think><answer></answer>": 1.0,
            good + "x": 0.0,
            "x" + good: 0.0,
            good + good: 0.0,
            "<think>a</think> so <answer>4</answer>": 0.0,
            "<think>a<think>b</think><answer>4</answer>": 0.0,
            "<answer>4</answer><think>a</think>": 0.0,
            "<think>a</think><answer>4</answer><|im_end|>": 0.0,
            "<think>a</think><answer>4": 0.0,
            "": 0.0,
        },
    )


def test_think_answer_format_strict():
    check(
        think_answer_format_strict,
        {
            THINK: 1.0,
            THINK + "\n": 1.0,
            " " + THINK: 0.0,
            THINK + "\nmore": 0.0,  # paid by the published pattern, whose $ is the end of any line
            THINK.replace("</think>\n", "</think> "): 0.0,
            "<think>a</think>\n<answer>\n4\n</answer>": 0.0,
            THINK + "\n" + THINK: 0.0,
            "": 0.0,
        },
    )


def test_reasoning_format_strict():
    check(
        reasoning_format_strict,
        {
            REASONING: 0.5,
            REASONING.rstrip(): 0.0,
            REASONING + "x": 0.0,
            "\n" + REASONING: 0.0,
            REASONING + REASONING: 0.0,
            REASONING.replace("<answer>\n", "<answer>"): 0.0,
            "": 0.0,
        },
    )


def test_reasoning_format_soft_and_what_it_misses_as_published():
    one_line = "<reasoning>a</reasoning> <answer>4</answer>"
    table = {
        REASONING: 0.5,
        one_line: 0.5,
        one_line + " and more": 0.5,
        "<reasoning>a</reasoning>\n\n<answer>4</answer>": 0.5,
        "<reasoning>a</reasoning> so <answer>4</answer>": 0.0,
        "so " + one_line: 0.0,
        "<reasoning>a</reasoning><answer>4": 0.0,
        "<reasoning>a</reasoning>x</reasoning><answer>4</answer>": 0.5,
        "<answer>4</answer>": 0.0,
        "": 0.0,
    }
    check(reasoning_format_soft, table)
    check(
        reasoning_format_soft_as_published,
        {**table, REASONING: 0.0, "<reasoning>a</reasoning>\n<answer>4\n</answer>": 0.0},
    )


def test_the_published_soft_format_is_the_regular_expression_without_dotall():
    """Pieces in every order: the linear search finds what the published pattern finds."""
    pieces = ["<reasoning>", "</reasoning>", "<answer>", "</answer>", "\n"]
    for size in range(1, 7):
        texts = ["".join(order) for order in itertools.product(pieces, repeat=size)]
        for reward, flags in ((reasoning_format_soft_as_published, 0), (reasoning_format_soft, re.DOTALL)):
            pattern = re.compile(r"<reasoning>.*?</reasoning>\s*<answer>.*?</answer>", flags)
            assert reward(completions=texts) == [0.5 * bool(pattern.match(text)) for text in texts]


def test_choice_formats():
    check(
        choice_format_strict,
        {
            CHOICE: 1.0,
            f"\n {CHOICE}\n": 1.0,
            CHOICE.replace("{B}", "{E}"): 0.0,
            CHOICE.replace("\\boxed{B}", "B"): 0.0,
            CHOICE + "\nDone": 0.0,
            CHOICE.replace("\n\\boxed", " \\boxed"): 0.0,
            "": 0.0,
        },
    )
    check(
        choice_format_soft,
        {
            CHOICE: 0.5,
            f"Well: {CHOICE} Done": 0.5,
            "<reasoning>a</reasoning> so <answer>It is C.</answer>": 0.5,
            "<reasoning>a</reasoning><answer>b</answer>": 0.0,
            "<reasoning>a</reasoning><answer></answer> D </answer>": 0.0,
            "<reasoning>a</reasoning><answer></answer><answer>D</answer>": 0.5,
            "<answer>A</answer><reasoning>a</reasoning>": 0.0,
            "<reasoning>a</reasoning><answer>A": 0.0,
            "": 0.0,
        },
    )


def test_code_format():
    check(
        CodeFormat(),
        {
            CODE: 1.0,
            CODE + "\nmore": 0.0,
            CODE.replace("```python", "```rust"): 0.0,
            CODE.replace("x = 1\n```", "x = 1"): 0.0,
            "<think>\n```python\n```\n</think>\n<answer>\nx = 1\n</answer>": 0.0,
            "<think>\na\n</think>\n<answer>\n```python\n\n</answer>": 0.0,
            "": 0.0,
        },
    )
    check(CodeFormat(language="rust"), {CODE: 0.0, CODE.replace("```python", "```rust"): 1.0})
    with pytest.raises(UserError, match="language is empty"):
        CodeFormat(language=" ")
