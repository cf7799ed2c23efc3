from __future__ import annotations

import pytest

from grpo_lightning.data.final_answers import formula_answer, number_answer


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        (r"\boxed{\dfrac34}", "3/4"),
        (r"so \boxed{0.750}", "3/4"),
        (r"\boxed{1,250}", "1250"),
        (r"\boxed{-007}", "-7"),
        (r"\boxed{15\%}", "15%"),
        (r"\boxed{x + 1}", formula_answer(r"The answer is $x+1$.")),
        ("I do not know.", None),
        ("", None),
    ],
)
def test_equal_formulas_are_equal_strings(completion: str, answer: str | None) -> None:
    assert formula_answer(completion) == answer


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("#### 1,234", "1234"),
        ("#### $18.00", "18"),
        ("18 dollars\n#### 18 dollars", "18"),
        ("#### -5", "-5"),
        ("18", "18"),
        ("no", None),
    ],
)
def test_equal_numbers_are_equal_strings(completion: str, answer: str | None) -> None:
    assert number_answer(completion) == answer
