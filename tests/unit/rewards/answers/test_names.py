from __future__ import annotations

import pytest

from grpo_lightning.rewards.answers.names import LONGEST_NAME, names_value


@pytest.mark.parametrize(
    "side",
    [
        *("x", "n", "AB", "f(2)", "f(g(2))", r"\angle A", r"m\angle A", "⟦Area⟧", "P(A|B)", "|AB|", "x_1", r"\theta"),
        *("E[X]", "[ABC]", "a+b", "100m+n", "x_1+x_2", r"\frac{AB}{CD}", "BC^2", r"\tan\theta", r"\sum_{k=1}^{6}k"),
        *("⟦Area of⟧ \\triangle ABC", "f''(2)", "f(2)+g(3)", "|z|", r"\alpha\beta"),
    ],
)
def test_names(side):
    assert names_value(side)


@pytest.mark.parametrize(
    "side",
    [
        *(
            "",
            "2x",
            "x^2",
            "x+1",
            "x+y",
            "xy",
            "ax",
            r"\sin x",
            r"\sqrt{x}",
            "-x",
            "n!",
            "2n",
            "n(n+1)",
            "x(y+1)",
            "|x|",
        ),
        *(
            "e",
            "i",
            r"\pi",
            r"\infty",
            r"\ln e",
            "⟦eight⟧",
            "⟦half of⟧ x",
            "8 ⟦apples⟧",
            "5",
            "2+3",
            "a" * LONGEST_NAME + "b",
        ),
    ],
)
def test_no_names(side):
    assert not names_value(side)
