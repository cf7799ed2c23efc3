r"""Plain numbers, exactly: what is written as a number is a ``Fraction`` and never meets symbolic algebra.

Understood (after ``notation.normal_form``): signs, thousands marks, decimals, ``3.2\times 10^5`` and ``3.2e5``, ``a/b``
and ``\frac{a}{b}``, mixed numbers, repeating decimals, ``%``, ``°``, units and words such as "million".
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace
from fractions import Fraction

from grpo_lightning.rewards.answers.words import changes_number, spelled_number

LONGEST_NUMBER = 1_000
"""Characters; longer runs of digits are compared as text only."""
LARGEST_EXPONENT = 1_000
LEAST_ROUNDED_DIGITS = 6
"""Significant digits from which on a decimal may stand for an exact value that has no finite decimal."""

_UNIT_WORDS = (
    "mm|cm|dm|km|in|inch|inches|ft|foot|feet|yd|yards?|mi|miles?|met(?:er|re)s?|kilomet(?:er|re)s?|centimet(?:er|re)s?|"
    "seconds?|secs?|minutes?|mins?|hours?|(?<!\\\\pi )hrs?|days?|weeks?|months?|years?|yrs?|decades?|ms|"
    "dollars?|cents?|bucks|euros?|USD|mph|kmh|"
    "kg|mg|grams?|kilograms?|lbs?|pounds?|ounces?|oz|tons?|lit(?:er|re)s?|ml|gallons?|cups?|units?|square|cubic|sq|cu|"
    "[a-z]{1,2}/(?:s|h|hr|min|sec)|kph|radians?|rad|people|students?|ways?|times|points?|hz|volts?|watts?|"
    "k?J|k?W|kWh|[KMG]B|cal|mol|inches|(?<=\\d )(?:m|g|L)"
)
_UNIT = rf"(?:⟦[^⟦⟧]*⟧|(?<![A-Za-z\\])(?:{_UNIT_WORDS})(?![A-Za-z(])|(?<=[\d.\s])(?<!\\)[A-Za-z]{{4,}}(?![A-Za-z(]))"
_POWER = r"(?:\^\s*\{?\s*-?\d\s*\}?)?"
_UNITS = re.compile(  # possessive spaces: "m m m m" must not be tried in every way
    rf"\s*+{_UNIT}\s*+{_POWER}(?:(?:/|\\cdot|per(?![A-Za-z]))?\s*+(?:{_UNIT}|[a-z](?![A-Za-z]))\s*+{_POWER}){{0,5}}$"
)
_LONGEST_UNIT = 100
"""Characters at the end of an answer among which a unit is looked for."""
_UNIT_FRACTION = re.compile(r"\s*\\frac\{\s*⟦[^⟦⟧]*⟧\s*\}\{\s*⟦[^⟦⟧]*⟧\s*(?:\^\s*\{?\d\}?)?\s*\}$")
_REMARK = re.compile(r"(?<=\d)\s\([A-Za-z][A-Za-z\s-]{3,}\)$")
_MAGNITUDES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
_MAGNITUDE = re.compile(rf"\s*⟦?\s*({'|'.join(_MAGNITUDES)})s?(?![A-Za-z])", re.IGNORECASE)
_MATH_WORDS = re.compile(
    r"\b(?:sqrt|frac|cdot|times|infty|infinity|none|undefined|choose|mod|and|or|sin|cos|tan|log)\b"
)
_NOT_UNITS = re.compile(
    r"⟦\s*(?:and|or|if|for|where|when|mod|none|no|not|is|squared|cubed|factorial|score"
    r"|(?:more|less|fewer|greater) than|hal(?:f|ves)|thirds?|fourths?|fifths?|tenths?|hundredths?|thousandths?"
    r"|in(?!\.?\s*⟧))\b",
    re.IGNORECASE,
)

_DECIMAL = r"(?:\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d+\.?\d*|\.\d+)"
_PLAIN = re.compile(rf"({_DECIMAL})(?:[eE]([-+]?\d+))?")
_POWER_OF_TEN = re.compile(
    rf"(?:({_DECIMAL})\s*(?:\\times|\\cdot|[x×])\s*)?10\s*\^\s*(?:\{{\s*([-+]?\d+)\s*\}}|([-+]?\d+))"
)
_SPACED = re.compile(r"\d{1,3}(?: \d{3})+(?:\.\d+)?")
_REPEATING = re.compile(r"(\d*)\.(\d*)(?:\\(?:overline|bar|dot)\s*\{?(\d+)\}?|\((\d+)\))")
_DOTTED = re.compile(r"(\d*)\.(\d*)\\dot\s*\{?(\d)\}?(\d*)\\dot\s*\{?(\d)\}?")
"""A dot over the first and the last digit of the cycle."""
_CONTINUED = re.compile(r"(\d*)\.(\d*?)(?:(\d)\3{2,}|(\d{2,12}?)\4+)\s*(?:\.\.\.|…)")
_CHINESE_UNIT = re.compile(r"(?<=[\d\s}%])\s*[\u4e00-\u9fff]{1,8}$")
_SLASH = re.compile(rf"([-+]?{_DECIMAL})\s*/\s*([-+]?{_DECIMAL})")
_FRACTION = re.compile(r"\\frac\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_MIXED = re.compile(r"(\d+)\s*\\frac\s*\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}|(\d+)\s+(?:⟦and⟧\s*|and\s+)?(\d+)\s*/\s*(\d+)")


@dataclass(frozen=True)
class Number:
    """An exact value and what was written around it."""

    value: Fraction
    percent: bool = False
    decimals: int | None = None
    """Digits after the point, if it was written as a decimal."""
    significant: int = 0
    """Significant digits of a decimal."""


def parse_number(text: str) -> Number | None:
    """The number that a text in normal form spells, units and all; None if it is anything else."""
    return None if len(text) > LONGEST_NUMBER else _parse_number(text.strip())


@functools.lru_cache(maxsize=16_384)
def _parse_number(text: str) -> Number | None:
    if not any(c.isdigit() for c in text):
        return None
    plain = _PLAIN.fullmatch(text)
    if plain:
        return _decimal(plain.group(1), int(plain.group(2) or 0))
    text, factor = _without_magnitude(text)
    text = without_units(text)
    percent = text.endswith("%")
    number = _signed(text.removesuffix("%").removesuffix("°").strip())
    if number is None:
        return None
    return replace(
        number, value=number.value * factor, percent=percent, decimals=None if factor > 1 else number.decimals
    )


def without_units(text: str) -> str:
    r"""The text without a trailing unit: ``45⟦m⟧/⟦s⟧``, ``45 cm^2``, ``45\frac{⟦m⟧}{⟦s⟧}``; words alone are kept."""
    for pattern in (_REMARK, _UNIT_FRACTION, _CHINESE_UNIT, _UNITS):
        match = pattern.search(text, max(0, len(text) - _LONGEST_UNIT))
        if match and text[: match.start()].strip() and not _NOT_UNITS.search(match.group()):
            if pattern is _UNITS and _MATH_WORDS.search(match.group()):
                continue
            if _is_other_number(text[: match.start()], match.group()):
                return text
            return text[: match.start()].strip()
    return text


def _is_other_number(number: str, words: str) -> bool:
    """Whether words after a number change it; "7 (seven)" merely says it again."""
    remark = words.strip(" ⟦⟧")
    spelled = spelled_number(remark[1:-1]) if remark[:1] == "(" and remark[-1:] == ")" else None
    if spelled is not None and not spelled[1]:
        plain = parse_number(number)
        return plain is None or plain.value != spelled[0]
    return changes_number(words, remark="(" in words)


def same_number(gold: Number, answer: Number) -> bool:
    """Whether an answer is the gold value.

    Values must be equal exactly, with two allowances. A percent sign on one side may be read either way: ``15%`` is
    15 and 0.15 (but without any sign 15 is not 0.15). A decimal of at least six significant digits may be the correct
    rounding of a gold that has no finite decimal: ``0.333333`` for 1/3.
    """
    if gold.value == answer.value:
        return True
    if gold.percent != answer.percent and (
        gold.value / 100 == answer.value if gold.percent else gold.value == answer.value / 100
    ):
        return True
    return not _has_finite_decimal(gold.value) and is_rounding(gold.value, answer)


def is_rounding(exact: Fraction, answer: Number) -> bool:
    """Whether a long enough decimal is ``exact`` correctly rounded to its last digit."""
    if answer.decimals is None or answer.significant < LEAST_ROUNDED_DIGITS:
        return False
    return abs(exact - answer.value) * 2 * 10**answer.decimals <= 1


def _has_finite_decimal(value: Fraction) -> bool:
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest == 1


def _without_magnitude(text: str) -> tuple[str, int]:
    match = _MAGNITUDE.search(text)
    if match is None or not text[: match.start()].strip() or not re.match(r"[\d}]", text[match.start() - 1]):
        return text, 1
    opened = "⟦" if "⟦" in match.group() else ""
    rest = text[match.end() :].strip()
    rest = "" if rest in ("", "⟧") else opened + rest
    return text[: match.start()] + (" " + rest if rest else ""), _MAGNITUDES[match.group(1).lower()]


@functools.lru_cache(maxsize=16_384)
def read_number(text: str) -> Number | None:
    """``parse_number``, or the number that a text spells in words, alone or with a unit: "seven hours"."""
    number = parse_number(text)
    if number is not None or any(c.isdigit() for c in text[:100]):
        return number
    spelled = spelled_number(text.replace("⟦", " ").replace("⟧", " ").strip())
    if spelled is None:
        return None
    value, rest = spelled
    if rest and (not _UNITS.fullmatch(" " + rest) or _NOT_UNITS.match("⟦" + rest) or changes_number(rest)):
        return None
    return Number(Fraction(value))


def _signed(text: str) -> Number | None:
    """Sign, brackets and braces round a number."""
    for _ in range(4):
        brackets = (text[:1], text[-1:])
        if brackets in (("(", ")"), ("{", "}")) and text.count(text[0]) == 1:
            text = text[1:-1].strip()
    sign = 1
    if text[:1] in ("-", "+"):
        sign, text = (-1 if text[0] == "-" else 1), text[1:].strip()
        if text[:1] in ("-", "+"):
            return None
        if text[:1] == "(":
            inner = _signed(text)
            return None if inner is None else replace(inner, value=sign * inner.value)
    number = _unsigned(text)
    return None if number is None else replace(number, value=sign * number.value)


def _unsigned(text: str) -> Number | None:
    plain = _PLAIN.fullmatch(text)
    if plain:
        return _decimal(plain.group(1), int(plain.group(2) or 0))
    power = _POWER_OF_TEN.fullmatch(text)
    if power:
        return _decimal(power.group(1) or "1", int(power.group(2) or power.group(3)))
    if _SPACED.fullmatch(text):
        return _decimal(text.replace(" ", ""), 0)
    for read in (_mixed, _quotient, _repeating):
        value = read(text)
        if value is not None:  # 0 is a value
            return Number(value)
    return None


def _decimal(digits: str, exponent: int) -> Number | None:
    if abs(exponent) > LARGEST_EXPONENT:
        return None
    digits = digits.replace(",", "")
    whole, _, places = digits.partition(".")
    significant = len((whole + places).lstrip("0"))
    value = Fraction(int(whole + places or 0), 10 ** len(places)) * Fraction(10) ** exponent
    return Number(value, decimals=len(places) if "." in digits and not exponent else None, significant=significant)


def _mixed(text: str) -> Fraction | None:
    match = _MIXED.fullmatch(text)
    if match is None:
        return None
    whole, top, bottom = (int(group) for group in match.groups() if group)
    return whole + Fraction(top, bottom) if 0 < top < bottom else None


def _quotient(text: str) -> Fraction | None:
    match = _SLASH.fullmatch(text) or _FRACTION.fullmatch(text)
    if match is None:
        return None
    top, bottom = (_signed(group.strip()) for group in match.groups())
    if top is None or bottom is None or bottom.value == 0:
        return None
    return top.value / bottom.value


def _repeating(text: str) -> Fraction | None:
    dotted = _DOTTED.fullmatch(text)
    match = dotted or _REPEATING.fullmatch(text) or _CONTINUED.fullmatch(text)
    if match is None:
        return None
    whole, fixed = match.group(1), match.group(2)
    cycle = "".join(dotted.groups()[2:]) if dotted else match.group(3) or match.group(4)
    scale = 10 ** len(fixed)
    return Fraction(int(whole + fixed or 0), scale) + Fraction(int(cycle), scale * (10 ** len(cycle) - 1))
