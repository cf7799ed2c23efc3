"""The shapes that answers have: one value, several, a matrix, pieces, an equation, another relation."""

from __future__ import annotations

import re
from dataclasses import dataclass

NAME = re.compile(
    r"(?:\\?[A-Za-z]+|\(\s*\\?[A-Za-z]+(?:\s*,\s*\\?[A-Za-z]+){1,3}\s*\)|⟦[^⟦⟧]*⟧|\\frac\{d[a-z]\}\{d[a-z]\}|d[a-z]/d[a-z]|\\(?:angle|triangle|overline|vec|bar|hat|mathbf)\s*\{?[A-Za-z]+\}?)"
    r"'*(?:_(?:\w|\{[^{}]*\}))?'*(?:\^\s*\{\s*-1\s*\}(?=\s*\())?(?:\s*\([^()]*\))?\s*"
)


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
class Pieces:
    """A function given piece by piece: values, each with its condition (None for "otherwise")."""

    pieces: tuple[tuple[Shape, Shape | None], ...]


@dataclass(frozen=True)
class Equation:
    """Sides joined by equality signs, ``x = \\frac{6}{2} = 3``."""

    sides: tuple[str, ...]
    value: Shape
    """The shape of the last side."""

    @property
    def names_its_value(self) -> bool:
        """True for ``x = 5``, ``f(2) = 5`` and ``⟦Area⟧ = 5``; False for ``2x + 3y = 6``."""
        return NAME.fullmatch(self.sides[0]) is not None


@dataclass(frozen=True)
class Relation:
    """An inequality or other statement that is no range of one variable; a chain goes upwards, ``a<b<c``."""

    text: str
    sides: tuple[str, ...] = ()
    signs: tuple[str, ...] = ()


Shape = Value | Group | Matrix | Pieces | Equation | Relation
ALL_REALS = Group("tuple", (Value(r"-\infty"), Value(r"\infty")))
