r"""Answers that have a meaning of their own as a whole: quantities, clock times, ratios, residues, numbers in a base.

``read`` takes a text in normal form; ``same_reading`` decides about two of which at least one could be read, or leaves
them to the rules for values (None).
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from fractions import Fraction

from grpo_lightning.rewards.answers.numbers import parse_number
from grpo_lightning.rewards.answers.units import Unit, parse_unit
from grpo_lightning.rewards.answers.words import BASES

LONGEST_READING = 200
"""Characters; longer texts have no such meaning."""
_DAY = 24 * 60


@dataclass(frozen=True)
class Quantity:
    """A number with a known unit, in base units; ``parts`` numbers were given one after the other (5 ft 3 in)."""

    value: Fraction
    unit: Unit
    parts: int


@dataclass(frozen=True)
class Clock:
    """A time of day in minutes, ``half`` False if neither am nor pm is said and it may be either."""

    minutes: Fraction
    half: bool
    bare: bool
    """Written like a ratio, 8:30."""


@dataclass(frozen=True)
class Ratio:
    """``3:4`` with its first part scaled to 1 (or 0, if it is 0)."""

    parts: tuple[Fraction, ...]


@dataclass(frozen=True)
class Residues:
    """``x \\equiv 3 \\pmod 7``."""

    residues: frozenset[int]
    modulus: int
    written: frozenset[int]


@dataclass(frozen=True)
class Based:
    """``1101_2``; base None if it is not given."""

    digits: str
    base: int


Reading = Quantity | Clock | Ratio | Residues | Based

_NUMBER = (
    r"(?:\d[\d,]*\.?\d*|\.\d+)(?:\s*\\(?:times|cdot)\s*10\s*\^\s*(?:\{-?\d{1,3}\}|-?\d{1,3})|\s*\\frac\{\d+\}\{\d+\}"
    r"|\s+\d+\s*/\s*\d+|\s*/\s*\d+)?|\\frac\{\d+\}\{\d+\}"
)
_UNIT = r"(?:(?!and\b)[^\d,;=<>+&^\\-]|\^\s*\{?-?\d\}?|\\frac\{[^{}]*\}\{[^{}]*\}|\\cdot)+"
_PART = re.compile(rf"\s*(?:,|and\b|,\s*and\b)?\s*({_NUMBER})\s*({_UNIT})")
_DOLLARS = re.compile(r"\\\$|^[^$]*(?<!\\)\$\s*[\d.][^$]*$")
_DEGREES = re.compile(r"°\s*\{?\s*([CF])\s*\}?(?![A-Za-z])|°\s*(celsius|fahrenheit)", re.IGNORECASE)
_FEET = re.compile(r"(\d+)\s*'(?!')\s*(?:(\d+(?:\.\d+)?)\s*(?:\"|'')?)?")
_INCHES = re.compile(r"(\d+(?:\.\d+)?)\s*(?:\"|'')")
_ARC = re.compile(r"(\d+)\s*°\s*(?:(\d+(?:\.\d+)?)\s*')?\s*(?:(\d+(?:\.\d+)?)\s*(?:\"|''))?")
_CLOCK = re.compile(
    r"(?:at\s+)?(\d{1,2})(?:\s*[:.]\s*(\d\d))?(?:\s*:\s*(\d\d))?\s*(o'?clock)?\s*"
    r"(a\.?\s?m\.?|p\.?\s?m\.?|noon|midnight|in the (?:morning|afternoon|evening)|at night)?(?:\s*o'?clock)?",
    re.IGNORECASE,
)
_RATIO = re.compile(r"(\d+(?:\.\d+)?)((?:\s*:\s*\d+(?:\.\d+)?)+)|(\d+)\s+to\s+(\d+)")
_RESIDUES = re.compile(
    r"(?:[A-Za-z]\s*(?:\\equiv|=)\s*)?((?:-|\\pm\s*)?\d{1,18}(?:\s*(?:,|or|and)\s*-?\d{1,18}){0,20})\s*\(?\s*\\?(?:pmod|bmod|mod|modulo)\s*\{?\s*"
    r"(\d{1,18})\s*\}?\s*\)?"
)
_BASED = re.compile(r"\(?\s*([0-9A-Za-z]{1,100})\s*\)?\s*_\s*\{?\s*([0-9]{1,2}|[a-z]+)\s*\}?")


@functools.lru_cache(maxsize=16_384)
def read(text: str) -> Reading | None:
    """What a text in normal form means as a whole; None if it is anything else."""
    if len(text) > LONGEST_READING or not any(c.isdigit() for c in text):
        word = text.strip(" ⟦⟧").casefold()
        if word in ("noon", "midnight"):
            return Clock(Fraction(_DAY // 2 if word == "noon" else 0), True, False)
        return _based(text)
    text = " ".join(text.replace("⟦", " ").replace("⟧", " ").split())
    return _clock(text) or _ratio(text) or _residues(text) or _based(text) or _quantity(text)


def read_answer(written: str, text: str) -> Reading | None:
    """``read``, and an amount of money where the answer as written has a currency sign.

    Args:
        written: the answer before ``normal_form``, which drops currency signs.
        text: the answer in normal form.
    """
    reading = read(text)
    if reading is None and ("$" in written or "€" in written):
        currency = "euro" if "€" in written else "dollar" if _DOLLARS.search(written) else None
        number = parse_number(text) if currency and not re.search(r"[A-Za-z%°⟦]", text) else None
        if number is not None:
            unit = parse_unit(currency or "")
            return None if unit is None else Quantity(number.value, unit, 1)
    return reading


def same_reading(gold: Reading | None, answer: Reading | None, gold_text: str, answer_text: str) -> bool | None:
    """Whether two answers mean the same; None leaves it to the rules for values.

    Args:
        gold: what the gold answer means, None if it has no such meaning.
        answer: the same of the answer; at least one of the two is not None.
        gold_text: the gold answer in normal form.
        answer_text: the answer in normal form.
    """
    if isinstance(gold, Quantity) and isinstance(answer, Quantity):
        return gold.unit.dimension == answer.unit.dimension and gold.value == answer.value
    if isinstance(gold, Quantity) or isinstance(answer, Quantity):
        compound = gold if isinstance(gold, Quantity) else answer
        return False if isinstance(compound, Quantity) and compound.parts > 1 else None
    if isinstance(gold, Residues) or isinstance(answer, Residues):
        return _same_residues(gold, answer, gold_text, answer_text)
    if isinstance(gold, Based) or isinstance(answer, Based):
        return _same_based(gold, answer, gold_text, answer_text)
    return _same_times_or_ratios(gold, answer, gold_text, answer_text)


def _same_residues(gold: Reading | None, answer: Reading | None, gold_text: str, answer_text: str) -> bool:
    if isinstance(gold, Residues) and isinstance(answer, Residues):
        return gold.modulus == answer.modulus and gold.residues == answer.residues
    residues, other = (gold, answer_text) if isinstance(gold, Residues) else (answer, gold_text)
    number = parse_number(other.rpartition("=")[2])
    return isinstance(residues, Residues) and number is not None and residues.written == {number.value}


def _same_based(gold: Reading | None, answer: Reading | None, gold_text: str, answer_text: str) -> bool:
    if isinstance(gold, Based) and isinstance(answer, Based):
        return gold == answer
    if isinstance(gold, Based):  # the question names the base
        digits = answer_text.rpartition("=")[2].replace(",", "").replace(" ", "").strip("()⟦⟧")
        return digits.upper().lstrip("0") == gold.digits
    number = parse_number(gold_text)
    return isinstance(answer, Based) and number is not None and number.value == int(answer.digits, answer.base)


def _same_times(gold: Clock, answer: Clock) -> bool:
    if gold.half and answer.half:
        return gold.minutes == answer.minutes
    return gold.minutes % (_DAY // 2) == answer.minutes % (_DAY // 2)


def _same_ratio(ratio: Ratio, text: str) -> bool | None:
    number = parse_number(text)
    if number is None:
        return None
    return len(ratio.parts) == 2 and ratio.parts[1] != 0 and number.value == ratio.parts[0] / ratio.parts[1]


def _same_times_or_ratios(
    gold: Reading | None, answer: Reading | None, gold_text: str, answer_text: str
) -> bool | None:
    if isinstance(gold, Clock) and isinstance(answer, Clock):
        if gold.bare and answer.bare:
            return _same_bare(gold_text, answer_text)
        return _same_times(gold, answer)
    if isinstance(gold, Ratio) and isinstance(answer, Ratio):
        return gold.parts == answer.parts
    if isinstance(gold, (Clock, Ratio)) and isinstance(answer, (Clock, Ratio)):
        return _same_bare(gold_text, answer_text)
    reading, other = (gold, answer_text) if gold is not None else (answer, gold_text)
    if isinstance(reading, Ratio):
        return _same_ratio(reading, other)
    assert isinstance(reading, Clock)
    if reading.bare:
        ratio = _ratio(_flat(gold_text if reading is gold else answer_text))
        return None if ratio is None else _same_ratio(ratio, other)
    number = parse_number(other)
    return number is not None and reading.minutes % (_DAY // 2) == number.value * 60 % (_DAY // 2) and number.value < 13


def _same_bare(gold_text: str, answer_text: str) -> bool:
    """``8:30`` and ``4:15`` may be ratios, or times that agree to the letter."""
    gold, answer = _ratio(_flat(gold_text)), _ratio(_flat(answer_text))
    minutes = [text.rpartition(":")[2].strip() for text in (gold_text, answer_text)]
    if any(text.startswith("0") for text in minutes):
        return gold_text.replace(" ", "").lstrip("0") == answer_text.replace(" ", "").lstrip("0")
    return gold is not None and gold == answer


def _flat(text: str) -> str:
    return " ".join(text.replace("⟦", " ").replace("⟧", " ").split())


def _clock(text: str) -> Clock | None:
    match = _CLOCK.fullmatch(text)
    if match is None or not (match[2] or match[4] or match[5] or "clock" in text):
        return None
    hour, minute, second = int(match[1]), int(match[2] or 0), int(match[3] or 0)
    said = (match[5] or "").casefold()
    if hour > 24 or minute > 59 or second > 59 or ("." in text[: match.end(2)] and not said):
        return None
    if not said:
        if not match[2] and not match[4] and "clock" not in text:
            return None
        known = hour >= 13 or match[1] in ("0", "00")
        return Clock(Fraction(hour % 24 * 3600 + minute * 60 + second, 60), known, "clock" not in text and not match[3])
    if hour > 12:
        return None
    afternoon = said[0] == "p" or said == "noon" or "after" in said or "evening" in said or "night" in said
    afternoon = afternoon and said != "midnight" and not (said == "at night" and hour < 5)
    return Clock(Fraction((hour % 12 + 12 * afternoon) * 3600 + minute * 60 + second, 60), True, False)


def _ratio(text: str) -> Ratio | None:
    match = _RATIO.fullmatch(text)
    if match is None:
        return None
    parts = [Fraction(part) for part in (text.split(":") if match[1] else [match[3], match[4]])]
    scale = next((part for part in parts if part), Fraction(1))
    return Ratio(tuple(part / scale for part in parts))


def _residues(text: str) -> Residues | None:
    match = _RESIDUES.fullmatch(text)
    if match is None or int(match[2]) == 0:
        return None
    written = frozenset(int(part) for part in re.findall(r"-?\d+", match[1]))
    if "\\pm" in match[1]:
        written |= {-residue for residue in written}
    modulus = int(match[2])
    return Residues(frozenset(residue % modulus for residue in written), modulus, written)


def _based(text: str) -> Based | None:
    match = _BASED.fullmatch(_flat(text).replace(" ", ""))
    if match is None:
        return None
    base = int(match[2]) if match[2].isdigit() else BASES.get(match[2], 0)
    digits = match[1].upper()
    is_name = not any(c.isdigit() for c in digits) and (base < 11 or len(digits) < 2 or match[1] != digits)  # x_{12}
    if not 2 <= base <= 36 or is_name or any(int(c, 36) >= base for c in digits):
        return None
    return Based(digits.lstrip("0") or "0", base)


def _quantity(text: str) -> Quantity | None:
    """A number with a unit, or several in falling units of one dimension."""
    sign = -1 if text.startswith("-") else 1
    text = _DEGREES.sub(lambda match: " celsius" if (match[1] or match[2])[0] in "Cc" else " fahrenheit", text)
    text = re.sub(r"degrees\s+(?=celsius|fahrenheit)", "", text.removeprefix("-").strip(), flags=re.IGNORECASE)
    text = _INCHES.sub(r"\1 in", text) if _INCHES.fullmatch(text) else text
    marks = _FEET.fullmatch(text)
    if marks:
        text = f"{marks[1]} ft" + (f" {marks[2]} in" if marks[2] else "")
    arc = _ARC.fullmatch(text)
    if arc and (arc[2] or arc[3]):
        value = Fraction(arc[1]) + Fraction(arc[2] or 0) / 60 + Fraction(arc[3] or 0) / 3600
        return Quantity(sign * value, Unit(Fraction(1), (("degrees", 1),)), 2)
    total, units, position = Fraction(0), list[Unit](), 0
    while position < len(text):
        part = _PART.match(text, position)
        number = parse_number(part[1]) if part else None
        unit = parse_unit(part[2].strip(" ,")) if part else None
        if part is None or number is None or unit is None:
            return None
        if units and (unit.dimension != units[-1].dimension or unit.factor >= units[-1].factor):
            return None
        total += number.value * unit.factor
        units.append(unit)
        position = part.end()
    return Quantity(sign * total, units[0], len(units)) if units else None
