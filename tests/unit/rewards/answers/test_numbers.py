from __future__ import annotations

from fractions import Fraction

import pytest

from grpo_lightning.rewards.answers.notation import normal_form
from grpo_lightning.rewards.answers.numbers import parse_number, same_number, without_units


def value(written):
    number = parse_number(normal_form(written))
    return None if number is None else number.value


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("1,250", 1250),
        ("1 250", 1250),
        ("1,250,000.50", Fraction(2500001, 2)),
        ("12,50", None),
        ("1,25", None),
        ("004", 4),
        ("4.", 4),
        (".75", Fraction(3, 4)),
        ("+5", 5),
        ("-(-5)", 5),
        ("--5", None),
        (r"3.2\times 10^5", 320000),
        (r"3.2 \cdot 10^{-5}", Fraction(1, 31250)),
        ("3.2e5", 320000),
        ("10^6", 10**6),
        ("1e99999", None),
        (r"\frac{-3}{4}", Fraction(-3, 4)),
        (r"\frac{3}{-4}", Fraction(-3, 4)),
        (r"\frac{3}{0}", None),
        ("3/4", Fraction(3, 4)),
        ("1/2/1", None),
        (r"2\frac13", Fraction(7, 3)),
        ("-1 1/2", Fraction(-3, 2)),
        (r"2\frac{4}{3}", None),
        (r"0.1\overline{6}", Fraction(1, 6)),
        (r"3.\dot{1}\dot{8}", Fraction(35, 11)),
        (r"0.\dot14285\dot7", Fraction(1, 7)),
        (r"\frac{0}{5}", 0),
        (r"7\text{ million}", 7_000_000),
        ("2.5 million dollars", 2_500_000),
        (r"45\text{ m}/\text{s}", 45),
        (r"45\frac{\text{m}}{\text{s}}", 45),
        ("45 minutes", 45),
        ("60°", 60),
        ("5x", None),
        ("5 or 7", None),
        ("5!", None),
        ("2 pi", None),
        (r"\text{none}", None),
        ("", None),
        ("9" * 1001, None),
    ],
)
def test_parse_number(written, expected):
    assert value(written) == expected


def test_units_go_and_words_stay():
    assert without_units(r"2\sqrt{3} ⟦cm⟧ ^2") == r"2\sqrt{3}"
    assert without_units("5 ⟦or⟧ 7") == "5 ⟦or⟧ 7"
    assert without_units("⟦Evelyn⟧") == "⟦Evelyn⟧"
    assert without_units(r"2 \pi") == r"2 \pi"


@pytest.mark.parametrize(
    ("gold", "answer", "same"),
    [
        ("15%", "15", True),
        ("15%", "0.15", True),
        ("0.15", "15%", True),
        ("15", "0.15", False),
        ("15%", "0.15%", False),
        ("1/3", "0.333333", True),
        ("1/3", "0.33333", False),
        ("1/3", "0.333334", False),
        ("7", "7.0000001", False),
        ("1/8", "0.1250001", False),
        ("0.00000025", "0.00000031", False),
        ("12345678901234567890", "12345678901234567891", False),
    ],
)
def test_same_number(gold, answer, same):
    gold_number, number = parse_number(gold), parse_number(answer)
    assert gold_number is not None
    assert number is not None
    assert same_number(gold_number, number) is same
