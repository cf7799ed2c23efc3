from __future__ import annotations

from fractions import Fraction

import pytest

from grpo_lightning.rewards.answers.notation import normal_form
from grpo_lightning.rewards.answers.readings import Based, Clock, Quantity, Ratio, Residues, read
from grpo_lightning.rewards.answers.units import parse_unit
from grpo_lightning.rewards.answers.words import as_word, spelled_number


def meaning(written):
    return read(normal_form(written))


def test_quantities_in_base_units():
    for written, value in (
        (r"2\text{ hours }30\text{ minutes}", 9000),
        ("5 ft 3 in", Fraction(16002, 10000)),
        ("150 min", 9000),
    ):
        found = meaning(written)
        assert isinstance(found, Quantity)
        assert found.value == value
    assert meaning("3 feet, 5 feet") is None  # two lengths, not one
    assert meaning("5 apples") is None


def test_times_in_minutes():
    assert meaning(r"3:05 \text{ p.m.}") == Clock(Fraction(15 * 60 + 5), True, False)
    assert meaning("12:30 am") == Clock(Fraction(30), True, False)
    assert meaning("noon") == Clock(Fraction(720), True, False)
    assert meaning("15:05") == Clock(Fraction(905), True, True)
    assert not isinstance(meaning("25:00"), Clock)
    assert not isinstance(meaning("3:75"), Clock)


def test_ratios_residues_and_bases():
    assert meaning("6:8:10") == Ratio((Fraction(1), Fraction(4, 3), Fraction(5, 3)))
    assert meaning(r"x \equiv -4 \pmod 7") == Residues(frozenset({3}), 7, frozenset({-4}))
    assert meaning(r"x \equiv \pm 1 \pmod 5") == Residues(frozenset({1, 4}), 5, frozenset({1, -1}))
    assert meaning(r"1101_{\text{two}}") == Based("1101", 2)
    assert meaning("2A_{16}") == Based("2A", 16)
    assert meaning("3_2") is None  # no such digit
    assert meaning("a_1") is None


def test_units_are_factors_and_dimensions():
    assert parse_unit("cm") == parse_unit("centimeters")
    assert parse_unit("square feet") == parse_unit("ft^2")
    assert parse_unit("km/h") == parse_unit("kilometers per hour") == parse_unit(r"\frac{km}{h}") == parse_unit("kph")
    assert parse_unit("apples") is None
    assert parse_unit("m/") is None
    metre, second = parse_unit("m"), parse_unit("m/s^2")
    assert metre is not None
    assert second is not None
    assert second.dimension == (("length", 1), ("time", -2))


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("seven", (7, "")),
        ("Twenty-one", (21, "")),
        ("one hundred and five cats", (105, "cats")),
        ("two thousand thirty", (2030, "")),
        ("minus four", (-4, "")),
        ("two three", None),
        ("cats", None),
        ("", None),
    ],
)
def test_numbers_in_words(words, found):
    assert spelled_number(words) == found


def test_words_that_mean_the_same():
    assert as_word("⟦DNE⟧") == as_word("does not exist") == "undefined"
    assert as_word("There are no real solutions.") == as_word("none") == "no solution"
    assert as_word("x+1") is None
