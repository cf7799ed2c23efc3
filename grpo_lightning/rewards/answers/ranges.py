"""Ranges of numbers, however they are written: ``2 < x \\le 5`` is ``(2,5]``, ``x \\ne 1`` a union of two."""

from __future__ import annotations

import itertools
import re

from grpo_lightning.rewards.answers.numbers import parse_number
from grpo_lightning.rewards.answers.shapes import NAME, Group, Shape, Value

_UNKNOWN = re.compile(r"(?<![\\A-Za-z])[xyz](?![A-Za-z])")
FLIPPED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}


def interval(sides: list[str], signs: list[str]) -> Group | None:
    """``2 < x \\le 5`` as ``(2,5]`` and ``x > 5`` as ``(5,\\infty)``."""
    if not all(sign in FLIPPED for sign in signs) or not all(len(side) < 200 for side in sides):
        return None
    if any(sign in (">", r"\ge") for sign in signs):
        sides, signs = sides[::-1], [FLIPPED[sign] for sign in reversed(signs)]
    if any(sign not in ("<", r"\le") for sign in signs):
        return None
    if len(sides) == 2 and all(_UNKNOWN.search(side) for side in sides):  # y > 2x + 1 is a half-plane
        return None
    if len(sides) == 3 and NAME.fullmatch(sides[1]) and not all(side.strip().isalpha() for side in sides):
        low, high, ends = sides[0], sides[2], ("(" if signs[0] == "<" else "[") + (")" if signs[1] == "<" else "]")
    elif len(sides) == 2 and NAME.fullmatch(sides[1]) and not NAME.fullmatch(sides[0]):
        low, high, ends = sides[0], r"\infty", "()" if signs[0] == "<" else "[)"
    elif len(sides) == 2 and NAME.fullmatch(sides[0]) and not NAME.fullmatch(sides[1]):
        low, high, ends = r"-\infty", sides[1], "()" if signs[0] == "<" else "(]"
    else:
        return None
    return Group("tuple" if ends == "()" else ends, (Value(low), Value(high)))


def all_but(points: str) -> Group | None:
    """All real numbers but the given ones, as a union."""
    numbers = [(parse_number(point), point.strip()) for point in points.split(",")]
    if not all(number for number, _ in numbers) or len(numbers) > 9:
        return None
    ends = [point for _, point in sorted(numbers, key=lambda pair: pair[0].value)]  # type: ignore[union-attr]
    cuts = [r"-\infty", *ends, r"\infty"]
    return Group("union", tuple(Group("tuple", (Value(a), Value(b))) for a, b in itertools.pairwise(cuts)))


def intersection(bounds: list[Shape]) -> Group | None:
    """``x > 2`` and ``x \\le 5`` together."""
    if not all(isinstance(b, Group) and b.kind in ("tuple", "[)", "(]") and len(b.items) == 2 for b in bounds):
        return None
    (low, left), (high, right) = ((b.items, b.kind) for b in bounds)  # type: ignore[union-attr]
    if high[0] != Value(r"-\infty"):
        (low, left), (high, right) = (high, right), (low, left)
    if low[1] != Value(r"\infty") or high[0] != Value(r"-\infty"):
        return None
    numbers = [parse_number(end.text) for end in (low[0], high[1]) if isinstance(end, Value)]
    if len(numbers) == 2 and numbers[0] and numbers[1] and numbers[0].value > numbers[1].value:
        return None  # x < 1 and x > 3: nothing
    ends = ("[" if left[0] == "[" else "(") + ("]" if right[-1] == "]" else ")")
    return Group("tuple" if ends == "()" else ends, (low[0], high[1]))
