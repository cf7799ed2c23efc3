"""Repetition and language, by hand."""

from __future__ import annotations

import math

import pytest

from grpo_lightning.errors import UserError
from grpo_lightning.rewards import LanguageConsistency, RepetitionPenalty
from tests.unit.rewards.trl_form import check


def test_repeated_words():
    table = {
        "a b c a b c a b c": -4 / 7,  # abc bca cab abc bca cab abc: 3 of 7
        "a b c d e": 0.0,
        "A b C\na B c": -0.25,  # abc bca cab abc
        "a a a a a": -2 / 3,
        "a b": 0.0,
        "": 0.0,
    }
    check(RepetitionPenalty(), table)
    check(RepetitionPenalty(variant="as_published"), table)
    check(RepetitionPenalty(n=2, max_penalty=-0.5), {"a b a b a": -0.25, "a b c": 0.0})
    assert math.copysign(1, RepetitionPenalty()(completions=["a b c d"])[0]) == 1.0


def test_repeated_chinese_characters():
    check(RepetitionPenalty(), {"因此因此因此": -0.5, "我们先算总数": 0.0, "so 因此 so 因此 so": -0.4})
    check(RepetitionPenalty(variant="as_published"), {"因此因此因此": 0.0})


def test_repeated_tokens():
    reward = RepetitionPenalty(n=2, variant="tokens")
    assert reward(completions=["x"] * 3, completion_ids=[[1, 2, 3, 4], [5] * 5, [1]]) == [0.0, -0.75, 0.0]
    with pytest.raises(UserError, match="needs completion_ids"):
        reward(completions=["x"])


def test_language_consistency():
    check(
        LanguageConsistency(language="zh"),
        {
            "因此答案是五": 1.0,
            "因此 so it is 五": 3 / 9,
            "therefore": 0.0,
            "因此 $x + yz$ 和 \\(abc\\) 是 `code` \\frac{1}{2} <answer>5</answer>": 1.0,
            "```python\nprint(1)\n```因此": 1.0,
            "1 + 2 = 3": 0.0,
            "": 0.0,
        },
    )
    check(
        LanguageConsistency(language="en"),
        {"Therefore it is five": 1.0, "so 因此": 0.5, "因此": 0.0, "ab да": 0.5, "It costs $5 and\nthat is all": 1.0},
    )
    check(LanguageConsistency(language="ja"), {"これは五です": 1.0, "これ is": 0.5})


def test_unclosed_code_and_formulas_hide_nothing():
    check(
        LanguageConsistency(language="en"),
        {"so ```\n因此": 0.5, "so \\( 因此": 0.5, "so $ 因此\n$": 0.5, "so ` 因此\n`": 0.5},
    )


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: RepetitionPenalty(n=0), "n 0"),
        (lambda: RepetitionPenalty(max_penalty=1.0), "max_penalty 1.0 is positive"),
        (lambda: RepetitionPenalty(variant="words"), "variant 'words'"),
        (lambda: LanguageConsistency(language="xx"), "language 'xx' .* en, zh"),
    ],
)
def test_wrong_settings(build, message):
    with pytest.raises(UserError, match=message):
        build()


def test_the_variants_are_told_as_a_list():
    listed = [line.strip() for line in str(RepetitionPenalty.__doc__).splitlines() if line.strip().startswith("- ")]
    assert [line.split("``")[1] for line in listed] == ["default", "as_published", "tokens"]
