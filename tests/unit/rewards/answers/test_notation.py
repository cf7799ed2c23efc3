from __future__ import annotations

import pytest

from grpo_lightning.rewards.answers.notation import normal_form


@pytest.mark.parametrize(
    ("written", "normal"),
    [
        (r"1{,}250", "1250"),
        (r"1\,250", "1250"),
        (r"1\!,\!250", "1250"),
        (r"11,\! 111,\! 111,\! 100", "11111111100"),
        (r"1{,}25", r"1{,}25"),
        (r"(1,\,2)", "(1,2)"),
        (r"\$32,\!348", "32348"),
        ("$37", "37"),
        (r"\pounds 37", "37"),
        (r"\texteuro 37", "37"),
        (r"\binom94", r"\binom{9}{4}"),
        (r"\tbinom nk", r"\binom{n}{k}"),
        (r"\text{5th}", "5"),
        (r"\text{0 and 1}", "0 ⟦and⟧ 1"),
        (r"\mathbb Z", r"\mathbb{Z}"),
        (r"\dfrac34", r"\frac{3}{4}"),
        (r"\frac 3 4", r"\frac{3}{4}"),
        (r"\frac9{19}", r"\frac{9}{19}"),
        (r"{3 \over 4}", r"\frac{3}{4}"),
        (r"3\sqrt2", r"3\sqrt{2}"),
        ("3*sqrt(2)", r"3\cdot \sqrt{2}"),
        ("\u22125", "-5"),
        (r"{-}5", "-5"),
        (r"-{5}", "-5"),
        (r"60^{\circ}", "60°"),
        (r"60\text{ degrees}", "60°"),
        (r"15\%", "15%"),
        (r"15\text{ percent}", "15%"),
        (r"45 \text{ cm}^2", "45 ⟦cm⟧ ^2"),
        (r"\mathrm{(B)}", "(B)"),
        (r"\mathbf{7}", "7"),
        (r"\boxed{7}", "7"),
        (r"\left[ 1, 2 \right)", "[1,2)"),
        ("\uff11\uff0c250", "1,250"),
        ("x²", "x^{2}"),
        (".75", ".75"),
        ("42.", "42"),
        (r"\(\frac12\)", r"\frac{1}{2}"),
        ("$ $", ""),
    ],
)
def test_one_spelling(written, normal):
    assert normal_form(written).replace("⟧ ^", "⟧^").replace(" %", "%").replace(" °", "°") == normal.replace(
        "⟧ ^", "⟧^"
    )


def test_twice_is_once():
    for written in (r"\dfrac34", r"45 \text{ cm}^2", r"x \in [-2,7]", r"\begin{pmatrix} 1&2\\3&4 \\ \end{pmatrix}"):
        assert normal_form(normal_form(written)) == normal_form(written)
