from __future__ import annotations

import pytest

from grpo_lightning.rewards import think_answer_format, think_format

GOOD = "<think>a\nb</think>\n<answer>4</answer>"


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (GOOD, 1.0),
        (f"\n{GOOD}\n", 1.0),
        ("<think></think><answer></answer>", 1.0),
        (GOOD + "x", 0.0),
        ("x" + GOOD, 0.0),
        (GOOD + GOOD, 0.0),
        ("<think>a</think> so <answer>4</answer>", 0.0),
        ("<think>a<think>b</think><answer>4</answer>", 0.0),
        ("<answer>4</answer><think>a</think>", 0.0),
        ("<think>a</think><answer>4</answer><|im_end|>", 0.0),
        ("<think>a</think><answer>4", 0.0),
        ("", 0.0),
    ],
)
def test_think_answer_format(text, score):
    assert think_answer_format(completions=[text], answer=["4"]) == [score]
    assert think_answer_format(completions=[[{"role": "assistant", "content": text}]]) == [score]


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("<think>a\n</think>\nb", 1.0),
        ("<think>a</think>", 1.0),
        ("b<think>a</think>", 0.0),
        ("<think>a", 0.0),
        ("", 0.0),
    ],
)
def test_think_format(text, score):
    assert think_format(completions=[text]) == [score]
