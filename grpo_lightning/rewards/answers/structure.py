r"""What shape an answer has: one value, a list of roots, a set, a point, an interval, a matrix, an equation.

Shapes are told apart before any algebra, so that ``5`` is not ``x=5 \text{ or } x=7``, ``(1,2)`` not ``(2,1)`` and a
column not a row. The values inside are left as text in ``notation.normal_form``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

DEEPEST = 12
"""Nesting of shapes; what lies deeper is one opaque value."""
MOST_ITEMS = 200

_OPEN, _CLOSE = "([{⟦", ")]}⟧"
_SEPARATOR_WORDS = re.compile(
    r"\s*,?\s*(?:⟦\s*,?\s*(?:and|or)\s*⟧|\\(?:lor|land|vee)(?![A-Za-z])"
    r"|(?<=[\d\s,}\])])(?:and|or)(?=\s*[\d\\(\[{A-Z-]|\s+[a-z]\s*[=<>\\]))\s*"
)
_RELATION = re.compile(r"\\(?:le|ge|ne|approx|in|equiv|sim|to|mapsto|Rightarrow|implies|mid)(?![A-Za-z])|[=<>]")
_MATRIX = re.compile(
    r"\\begin\{(pmatrix|bmatrix|Bmatrix|matrix|smallmatrix|array)\}(?:\{[lcr| ]*\})?(.*)\\end\{\1\}", re.DOTALL
)
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_NAME = re.compile(
    r"(?:\\?[A-Za-z]+|⟦[^⟦⟧]*⟧|\\(?:angle|triangle|overline|vec|bar|hat|mathbf)\s*\{?[A-Za-z]+\}?)"
    r"'*(?:_(?:\w|\{[^{}]*\}))?'*(?:\s*\([^()]*\))?\s*"
)
_EMPTY = re.compile(r"\\emptyset|\\\{\s*\\\}|⟦\s*(?:none|no solutions?|empty set)\s*⟧", re.IGNORECASE)
_FLIPPED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}


@dataclass(frozen=True)
class Value:
    """Anything without a shape of its own."""

    text: str


@dataclass(frozen=True)
class Group:
    """Several answers: kind is ``list`` (bare), ``set``, ``tuple``, ``union`` or an interval's brackets, ``(]``."""

    kind: str
    items: tuple[Shape, ...]


@dataclass(frozen=True)
class Matrix:
    """Rows of values."""

    rows: tuple[tuple[Shape, ...], ...]


@dataclass(frozen=True)
class Equation:
    """Sides joined by equality signs, ``x = \\frac{6}{2} = 3``."""

    sides: tuple[str, ...]
    value: Shape
    """The shape of the last side."""

    @property
    def names_its_value(self) -> bool:
        """True for ``x = 5``, ``f(2) = 5`` and ``⟦Area⟧ = 5``; False for ``2x + 3y = 6``."""
        return _NAME.fullmatch(self.sides[0]) is not None


@dataclass(frozen=True)
class Relation:
    """An inequality or other relation that is not an interval of one variable."""

    text: str


Shape = Value | Group | Matrix | Equation | Relation


def parse_shape(text: str, depth: int = 0) -> Shape:
    """The shape of an answer in normal form."""
    text = _stripped(text.strip())
    if depth > DEEPEST or _THOUSANDS.fullmatch(text):
        return Value(text)
    if _EMPTY.fullmatch(text):
        return Group("set", ())
    parts = _split(_SEPARATOR_WORDS.sub(" , ", text), ",;")
    if 1 < len(parts) <= MOST_ITEMS:
        return Group("list", _items(_named_once(parts), depth))
    matrix = _MATRIX.fullmatch(text) or _MATRIX.fullmatch(text[1:-1].strip())  # \\left( \\begin{array} ... \\right)
    if matrix:
        return _matrix(matrix.group(2), depth)
    sides, signs = _relation_parts(text)
    if signs:
        return _related(text, sides, signs, depth)
    pieces = _split(text, [r"\cup"])
    if len(pieces) > 1:
        return Group("union", _items(pieces, depth))
    return _bracketed(text, depth) or _signs_expanded(text) or Value(text)


def parse_list(text: str) -> Group:
    """``1,250`` read as two items rather than as one number."""
    return Group("list", tuple(Value(part) for part in _split(text, ",")))


def _items(parts: list[str], depth: int) -> tuple[Shape, ...]:
    """Shapes of the parts; a ``1 \\pm 2`` among them counts as two."""
    items: list[Shape] = []
    for part in parts:
        shape = parse_shape(part, depth + 1)
        if isinstance(shape, Group) and shape.kind == "list":
            items.extend(shape.items)
        else:
            items.append(shape)
    return tuple(items)


def _named_once(parts: list[str]) -> list[str]:
    """``k=3,5,8`` names the whole list once; the name is dropped."""
    name, sign, first = parts[0].partition("=")
    if sign and _NAME.fullmatch(name.strip()) and not any(_RELATION.search(part) for part in [first, *parts[1:]]):
        return [first, *parts[1:]]
    return parts


def _stripped(text: str) -> str:
    """Without braces round the whole, and without closing punctuation."""
    while text[:1] == "{" and _matching(text, 0) == len(text) - 1:
        text = text[1:-1].strip()
    return text


def _matching(text: str, start: int) -> int:
    """Index of the bracket that closes the one at ``start`` (kinds may differ, as in ``(0,1]``); -1 if none."""
    depth = 0
    for index in range(start, len(text)):
        depth += (text[index] in _OPEN) - (text[index] in _CLOSE)
        if depth == 0:
            return index
    return -1


def _split(text: str, separators: str | list[str]) -> list[str]:
    """Parts between separators that stand outside every bracket and environment."""
    parts, depth, start, index = [], 0, 0, 0
    while index < len(text):
        if text.startswith((r"\begin", r"\end"), index):
            depth += 1 if text.startswith(r"\begin", index) else -1
            index += 4
            continue
        depth += (text[index] in _OPEN) - (text[index] in _CLOSE)
        hit = next((s for s in separators if depth == 0 and text.startswith(s, index)), None)
        if hit:
            parts.append(text[start:index])
            start = index + len(hit)
        index += len(hit) if hit else 1
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def _relation_parts(text: str) -> tuple[list[str], list[str]]:
    """Sides and signs of the relations that stand outside every bracket."""
    sides, signs, depth, start, position = [], [], 0, 0, 0
    for match in _RELATION.finditer(text):
        between = text[position : match.start()]
        depth += sum((c in _OPEN) - (c in _CLOSE) for c in between)
        position = match.end()
        if depth == 0 and r"\begin" not in text[: match.start()]:
            sides.append(text[start : match.start()].strip())
            signs.append(match.group())
            start = match.end()
    return [*sides, text[start:].strip()], signs


def _related(text: str, sides: list[str], signs: list[str], depth: int) -> Shape:
    if not all(sides):
        return Relation(text)
    if all(sign in ("=", r"\approx") for sign in signs):
        if _NAME.fullmatch(sides[-1]) and not _NAME.fullmatch(sides[0]):
            sides = sides[::-1]  # 5 = x
        return Equation(tuple(sides), parse_shape(sides[-1], depth + 1))
    if signs == [r"\in"] and _NAME.fullmatch(sides[0]):
        return parse_shape(sides[1], depth + 1)
    return _interval(sides, signs) or Relation(text)


def _interval(sides: list[str], signs: list[str]) -> Group | None:
    """``2 < x \\le 5`` as ``(2,5]`` and ``x > 5`` as ``(5,\\infty)``."""
    if not all(sign in _FLIPPED for sign in signs) or not all(len(side) < 200 for side in sides):
        return None
    if any(sign in (">", r"\ge") for sign in signs):
        sides, signs = sides[::-1], [_FLIPPED[sign] for sign in reversed(signs)]
    if any(sign not in ("<", r"\le") for sign in signs):
        return None
    if len(sides) == 3 and _NAME.fullmatch(sides[1]):
        low, high, ends = sides[0], sides[2], ("(" if signs[0] == "<" else "[") + (")" if signs[1] == "<" else "]")
    elif len(sides) == 2 and _NAME.fullmatch(sides[1]) and not _NAME.fullmatch(sides[0]):
        low, high, ends = sides[0], r"\infty", "()" if signs[0] == "<" else "[)"
    elif len(sides) == 2 and _NAME.fullmatch(sides[0]) and not _NAME.fullmatch(sides[1]):
        low, high, ends = r"-\infty", sides[1], "()" if signs[0] == "<" else "(]"
    else:
        return None
    return Group("tuple" if ends == "()" else ends, (Value(low), Value(high)))


def _bracketed(text: str, depth: int) -> Shape | None:
    """``\\{...\\}``, ``(..., ...)``, ``[..., ...]`` and mixed brackets round the whole text."""
    if text.startswith(r"\{") and text.endswith(r"\}") and _matching(text, 1) == len(text) - 1:
        parts = _split(_SEPARATOR_WORDS.sub(" , ", text[2:-2]), ",;")
        return Group("set", _items(parts, depth)) if len(parts) <= MOST_ITEMS else None
    if not (text[:1] in ("(", "[") and text[-1:] in (")", "]") and _matching(text, 0) == len(text) - 1):
        return None
    parts = _split(text[1:-1], ",;")
    if not 1 < len(parts) <= MOST_ITEMS:
        return None
    ends = text[0] + text[-1]
    kind = "tuple" if ends == "()" or (len(parts) > 2 and ends == "[]") else ends
    return Group(kind, _items(parts, depth))


def _signs_expanded(text: str) -> Group | None:
    """``1 \\pm \\sqrt{19}`` as the list of its two values."""
    if not re.search(r"\\(?:pm|mp)(?![A-Za-z])", text):
        return None
    plus = re.sub(r"\\mp\s*", "-", re.sub(r"\\pm\s*", "+", text))
    minus = re.sub(r"\\mp\s*", "+", re.sub(r"\\pm\s*", "-", text))
    return Group("list", (Value(plus.removeprefix("+")), Value(minus.removeprefix("+"))))


def _matrix(body: str, depth: int) -> Shape:
    rows = [row for row in re.split(r"\\\\|\\cr(?![a-z])", body.replace(r"\hline", "")) if row.strip()]
    if len(rows) > MOST_ITEMS:
        return Value(body)
    return Matrix(tuple(tuple(parse_shape(cell, depth + 1) for cell in row.split("&")) for row in rows))
