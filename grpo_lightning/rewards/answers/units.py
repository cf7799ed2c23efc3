r"""Units of measure: ``5 cm`` is ``50 mm``, not ``5 m``; ``2 hours 30 minutes`` is ``150 minutes``.

A unit is a factor and powers of base dimensions. A word that is no unit known here ("apples") says nothing: it is
dropped elsewhere (``numbers.without_units``), and so is a missing unit on one side.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from fractions import Fraction

Dimension = tuple[tuple[str, int], ...]
"""Powers of base dimensions, sorted: ``(("length", 1), ("time", -2))``."""


@dataclass(frozen=True)
class Unit:
    """A unit as a multiple of its dimension's base unit."""

    factor: Fraction
    dimension: Dimension


_INCH = Fraction(254, 10_000)
_POUND = Fraction(45_359_237, 100_000_000)
_TABLE: dict[str, tuple[int | Fraction, str]] = {
    "mm millimeter millimetre": (Fraction(1, 1000), "length"),
    "cm centimeter centimetre": (Fraction(1, 100), "length"),
    "dm decimeter decimetre": (Fraction(1, 10), "length"),
    "m meter metre": (1, "length"),
    "km kilometer kilometre": (1000, "length"),
    "in inch inches": (_INCH, "length"),
    "ft foot feet": (12 * _INCH, "length"),
    "yd yard": (36 * _INCH, "length"),
    "mi mile": (63_360 * _INCH, "length"),
    "mg milligram": (Fraction(1, 1_000_000), "mass"),
    "g gram": (Fraction(1, 1000), "mass"),
    "kg kilogram": (1, "mass"),
    "oz ounce": (_POUND / 16, "mass"),
    "lb lbs pound": (_POUND, "mass"),
    "s sec second": (1, "time"),
    "ms millisecond": (Fraction(1, 1000), "time"),
    "min minute": (60, "time"),
    "h hr hrs hour": (3600, "time"),
    "day": (86_400, "time"),
    "week": (604_800, "time"),
    "month": (1, "calendar"),
    "year yr yrs": (12, "calendar"),
    "decade": (120, "calendar"),
    "century centuries": (1200, "calendar"),
    "dollar usd buck": (1, "dollars"),
    "cent": (Fraction(1, 100), "dollars"),
    "euro eur": (1, "euros"),
    "rupee": (1, "rupees"),
    "yen": (1, "yen"),
    "yuan": (1, "yuan"),
    "celsius": (1, "celsius"),
    "fahrenheit": (1, "fahrenheit"),
    "kelvin": (1, "kelvin"),
    "radian rad": (1, "angle"),
    "hz hertz": (1, "frequency"),
    "newton": (1, "newtons"),
    "joule": (1, "joules"),
    "watt": (1, "watts"),
    "volt": (1, "volts"),
}
_VOLUMES: dict[str, Fraction] = {
    "l liter litre": Fraction(1, 1000),
    "ml milliliter millilitre": Fraction(1, 1_000_000),
    "gallon gal": 231 * _INCH**3,
    "quart qt": 231 * _INCH**3 / 4,
    "pint pt": 231 * _INCH**3 / 8,
    "cup": 231 * _INCH**3 / 16,
}
_UNITS: dict[str, Unit] = {
    spelling: Unit(Fraction(factor), ((dimension, 1),))
    for spellings, (factor, dimension) in _TABLE.items()
    for word in spellings.split()
    for spelling in {word, word + "s" if len(word) > 2 and not word.endswith("s") else word}
}
_UNITS |= {
    spelling: Unit(factor, (("length", 3),))
    for spellings, factor in _VOLUMES.items()
    for word in spellings.split()
    for spelling in {word, word + "s" if len(word) > 2 else word}
}
_UNITS |= {
    "mph": Unit(63_360 * _INCH / 3600, (("length", 1), ("time", -1))),
    "kph": Unit(Fraction(1000, 3600), (("length", 1), ("time", -1))),
    "kmh": Unit(Fraction(1000, 3600), (("length", 1), ("time", -1))),
}

_WORD = re.compile(r"(square|cubic|sq|cu)?\s*([a-z]+)\s*(?:\^\s*\{?\s*(-?\d)\s*\}?|(squared|cubed))?")
_JOIN = re.compile(r"\s*(/|\\cdot(?![a-z])|per(?![a-z])|)\s*")
_FRACTION = re.compile(r"\\frac\s*\{([^{}]*(?:\{\d\})?)\}\s*\{([^{}]*(?:\{\d\})?)\}")
_POWERS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cu": 3, "cubed": 3}


@functools.lru_cache(maxsize=4096)
def parse_unit(text: str) -> Unit | None:
    """The unit that a text without numbers spells: ``km/h``, ``square feet``, ``m^2``; None if any part is unknown."""
    text = _FRACTION.sub(r"\1/\2", text).strip(" ()").replace(".", " ").casefold().strip()
    factor, powers, position, sign = Fraction(1), dict[str, int](), 0, 1
    if not text or len(text) > 60:
        return None
    while position < len(text):
        match = _WORD.match(text, position)
        unit = _UNITS.get(match[2]) if match else None
        if match is None or unit is None:
            return None
        power = sign * (_POWERS.get(match[1] or match[4], 1) if match[1] or match[4] else int(match[3] or 1))
        factor *= unit.factor**power
        for name, exponent in unit.dimension:
            powers[name] = powers.get(name, 0) + exponent * power
        joint = _JOIN.match(text, match.end())
        assert joint is not None
        sign = -1 if joint[1] in ("/", "per") else sign
        if joint.end() == len(text) and joint[1]:
            return None
        position = joint.end()
    return Unit(factor, tuple(sorted((name, power) for name, power in powers.items() if power)))
