"""Comparing two shapes piece by piece; an oracle decides about the values in them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from grpo_lightning.rewards.answers.names import names_value
from grpo_lightning.rewards.answers.numbers import read_number
from grpo_lightning.rewards.answers.shapes import Equation, Group, Matrix, Pieces, Relation, Shape, Value
from grpo_lightning.rewards.answers.structure import parse_list

_OPERATOR = re.compile(r"\\(?:frac|sqrt|cdot|times|pi|binom|pm)(?![a-z])")
_LETTER = re.compile(r"[A-Za-z⟦]")
_BINOMIAL = re.compile(r"\\binom\s*\{([^{}]*)\}\s*\{([^{}]*)\}")
_LABEL = re.compile(r"[A-Z]|⟦[^⟦⟧]*⟧|[A-Za-z]{2,}")
_FUNCTION = re.compile(r"y|d[a-z]/d[a-z]|[a-zA-Z]\([a-z]\)|y'|[a-zA-Z]'\([a-z]\)|\\frac\{d[a-z]\}\{d[a-z]\}")


_DERIVATIVE = re.compile(r"'|\\frac|/")


class Oracle(Protocol):
    """Decides about two texts without shape; None means that it cannot tell."""

    def same_value(self, gold: str, answer: str) -> bool | None:
        """Whether two values are equal."""

    def same_equation(self, gold: tuple[str, str], answer: tuple[str, str], *, directed: bool = False) -> bool | None:
        """Whether two equations, left and right side each, have the same solutions; inequalities if ``directed``."""

    def same_relation(self, gold: str, answer: str) -> bool | None:
        """Whether two inequalities or sets of numbers are the same."""


def compare(gold: Shape, answer: Shape, oracle: Oracle) -> bool | None:
    """Whether two shapes are the same answer; the gold one decides what is asked for."""
    if isinstance(gold, Relation) or isinstance(answer, Relation):
        return _compare_relations(gold, answer, oracle)
    if isinstance(gold, Equation) or isinstance(answer, Equation):
        return _compare_equations(gold, answer, oracle)
    if isinstance(gold, Pieces) or isinstance(answer, Pieces):
        return isinstance(gold, Pieces) and isinstance(answer, Pieces) and _compare_pieces(gold, answer, oracle)
    if isinstance(gold, Matrix) or isinstance(answer, Matrix):
        return _compare_matrices(gold, answer, oracle)
    if isinstance(gold, Value) and isinstance(answer, Value):
        return oracle.same_value(gold.text, answer.text)
    return _compare_groups(gold, answer, oracle)


def _compare_relations(gold: Shape, answer: Shape, oracle: Oracle) -> bool | None:
    if isinstance(gold, Value) or isinstance(answer, Value):
        return False
    if isinstance(gold, Relation) and isinstance(answer, Relation) and gold.signs == answer.signs != ():
        verdict = _all([oracle.same_value(g, a) for g, a in zip(gold.sides, answer.sides, strict=True)])
        if verdict is True or len(gold.sides) > 2:
            return verdict
        if gold.signs[0] in ("<", r"\le"):
            return oracle.same_equation(
                (gold.sides[0], gold.sides[1]), (answer.sides[0], answer.sides[1]), directed=True
            )
    texts = as_relation(gold), as_relation(answer)
    return None not in texts and oracle.same_relation(*texts)  # type: ignore[arg-type]


def _compare_equations(gold: Shape, answer: Shape, oracle: Oracle) -> bool | None:
    if not isinstance(answer, Equation):
        assert isinstance(gold, Equation)
        return compare(gold.value, answer, oracle) if gold.names_its_value else False
    if not isinstance(gold, Equation):
        # Every side without a letter is a value by itself: 2+3=5 holds, 6=5 does not. One side must name the value,
        # or all of them be values: 2x=5 is no answer for 5.
        named = any(map(names_value, answer.sides[:-1]))
        values = [Value(side) for side in answer.sides[:-1] if not named or not _LETTER.search(_OPERATOR.sub("", side))]
        claims = [compare(answer.value, value, oracle) for value in values]
        return _all([*claims, compare(gold, answer.value, oracle)])
    if gold.names_its_value and answer.names_its_value:
        verdict = compare(gold.value, answer.value, oracle)
        same_name = gold.sides[0].replace(" ", "") == answer.sides[0].replace(" ", "")
        is_number = isinstance(gold.value, Value) and read_number(gold.value.text) is not None
        if verdict is False and {gold.sides[0].strip(), answer.sides[0].strip()} == {"x", "y"} and not is_number:
            return oracle.same_equation((gold.sides[0], gold.sides[-1]), (answer.sides[0], answer.sides[-1]))
        names = [_FUNCTION.fullmatch(side.sides[0].replace(" ", "")) for side in (gold, answer)]
        if all(names) and len({_DERIVATIVE.search(name[0]) is None for name in names if name}) > 1:
            return False  # y' = 2x is not y = 2x
        if verdict is not True or same_name or is_number or not isinstance(gold.value, Value) or all(names):
            return verdict
    sides = (gold.sides[0], gold.sides[-1]), (answer.sides[0], answer.sides[-1])
    return oracle.same_equation(*sides)


def _compare_pieces(gold: Pieces, answer: Pieces, oracle: Oracle) -> bool | None:
    """The same values under the same conditions in any order; "otherwise" stands for the one condition left over."""
    if len(gold.pieces) != len(answer.pieces):
        return False
    left = list(answer.pieces)
    over = []
    for value, condition in gold.pieces:
        verdicts = [
            _all([compare(condition, other_condition, oracle), compare(value, other, oracle)])
            if condition is not None and other_condition is not None
            else False
            for other, other_condition in left
        ]
        if True in verdicts:
            left.pop(verdicts.index(True))
        elif None in verdicts:
            return None
        else:
            over.append((value, condition))
    if not over:
        return True
    is_rest = over[0][1] is None or left[0][1] is None
    return len(over) == 1 and is_rest and compare(over[0][0], left[0][0], oracle)


def _compare_matrices(gold: Shape, answer: Shape, oracle: Oracle) -> bool | None:
    if isinstance(gold, Matrix) and isinstance(answer, Matrix):
        if [len(row) for row in gold.rows] != [len(row) for row in answer.rows]:
            return False
        return _in_order(sum(gold.rows, ()), sum(answer.rows, ()), oracle)
    matrix, other = (gold, answer) if isinstance(gold, Matrix) else (answer, gold)
    assert isinstance(matrix, Matrix)
    if isinstance(other, Value):  # such as a number times a matrix
        column = _as_column(other) if gold is matrix else None
        if column:
            return compare(gold, column, oracle)
        return False if read_number(other.text) is not None else oracle.same_value(as_text(gold), as_text(answer))
    is_vector = len(matrix.rows) == 1 or all(len(row) == 1 for row in matrix.rows)
    if not isinstance(other, Group) or other.kind != "tuple" or not is_vector:
        return False
    cells = sum(matrix.rows, ())
    return _in_order(cells, other.items, oracle) if gold is matrix else _in_order(other.items, cells, oracle)


def _compare_groups(gold: Shape, answer: Shape, oracle: Oracle) -> bool | None:
    if isinstance(gold, Value) or isinstance(answer, Value):
        value, group = (gold, answer) if isinstance(gold, Value) else (answer, gold)
        assert isinstance(value, Value)
        assert isinstance(group, Group)
        if group.kind == "list" and "," in value.text:  # 1,250 next to a list is a list as well
            return (
                _compare_groups(parse_list(value.text), answer, oracle)
                if value is gold
                else _compare_groups(gold, parse_list(value.text), oracle)
            )
        if value is answer and group.kind == "set" and len(group.items) == 1:
            return compare(group.items[0], value, oracle)
        column = _as_column(value) if value is answer else None
        if column and group.kind == "tuple":
            return compare(gold, column, oracle)
        # R minus a point, say, against a union: only algebra can tell.
        is_range = group.kind in ("union", "(]", "[)", "[]") and r"\\" not in value.text and "\\" in value.text
        return oracle.same_relation(as_text(gold), as_text(answer)) if is_range else False
    assert isinstance(gold, Group)
    assert isinstance(answer, Group)
    kinds = {gold.kind, answer.kind}
    named = _by_name(gold, answer)
    if named:
        return _in_order(*named, oracle)
    if kinds == {"list"} and _is_ordering(gold):
        return _in_order(gold.items, answer.items, oracle)
    if kinds <= {"list", "set"} or kinds == {"union"}:
        verdict = _in_any_order(gold.items, answer.items, oracle)
        return oracle.same_relation(as_text(gold), as_text(answer)) if kinds == {"union"} and not verdict else verdict
    if kinds == {"union", "list"}:  # x < 1 or x > 3
        return _in_any_order(gold.items, answer.items, oracle)
    if kinds <= {"tuple", "list"} or len(kinds) == 1:
        return _in_order(gold.items, answer.items, oracle)
    return False


def _as_column(value: Value) -> Matrix | None:
    """``\\binom{3}{4}`` as a column, for where a vector is asked for."""
    match = _BINOMIAL.fullmatch(value.text.strip())
    return Matrix(((Value(match[1]),), (Value(match[2]),))) if match else None


def _by_name(gold: Group, answer: Group) -> tuple[Sequence[Shape], Sequence[Shape]] | None:
    """Items in the order of their names where ``x=2, y=3`` names each of several; None where names say nothing."""
    names: list[list[str] | None] = []
    for group in (gold, answer):
        equations = [item for item in group.items if isinstance(item, Equation) and item.names_its_value]
        found = [equation.sides[0].replace(" ", "") for equation in equations]
        named = len(found) == len(group.items) > 1 and len(set(found)) == len(found)
        names.append(found if named and not any("_" in name for name in found) else None)
    if names == [None, None] or "set" in (gold.kind, answer.kind):
        return None
    if names[0] is None or names[1] is None:
        unnamed = answer if names[1] is None else gold
        if unnamed.kind not in ("tuple", "list"):
            return None
    items = []
    for group, listed in zip((gold, answer), names, strict=True):
        in_order = sorted(zip(listed, group.items, strict=True), key=lambda pair: pair[0]) if listed else []
        items.append([item for _, item in in_order] if listed else list(group.items))
    return items[0], items[1]


def _is_ordering(gold: Group) -> bool:
    """Three labels or more that are not in alphabetical order say an order: ``B, A, C``."""
    labels = [item.text.strip(" ⟦⟧") for item in gold.items if isinstance(item, Value) and _LABEL.fullmatch(item.text)]
    return len(labels) == len(gold.items) > 2 and labels != sorted(labels)


def _in_order(gold: Sequence[Shape], answer: Sequence[Shape], oracle: Oracle) -> bool | None:
    if len(gold) != len(answer):
        return False
    return _all([compare(g, a, oracle) for g, a in zip(gold, answer, strict=True)])


def _in_any_order(gold: Sequence[Shape], answer: Sequence[Shape], oracle: Oracle) -> bool | None:
    if len(gold) != len(answer):
        return False
    left = list(answer)
    unclear = False
    for shape in gold:
        verdicts = [compare(shape, other, oracle) for other in left]
        if True in verdicts:
            left.pop(verdicts.index(True))
        elif None in verdicts:
            unclear = True
        else:
            return False
    return None if unclear else True


def _all(verdicts: Sequence[bool | None]) -> bool | None:
    if False in verdicts:
        return False
    return None if None in verdicts else True


def as_relation(shape: Shape) -> str | None:
    """Text of a relation or a range of numbers, for the oracle; None for other shapes."""
    if isinstance(shape, Relation) or (isinstance(shape, Group) and shape.kind not in ("list", "set")):
        return as_text(shape)
    return None


def as_text(shape: Shape) -> str:
    """A shape written out again in LaTeX."""
    if isinstance(shape, (Value, Relation)):
        return shape.text
    if isinstance(shape, Equation):
        return "=".join(shape.sides)
    if isinstance(shape, Pieces):
        lines = [f"{as_text(v)}&{as_text(c) if c else '⟦otherwise⟧'}" for v, c in shape.pieces]
        return r"\begin{cases}" + r"\\".join(lines) + r"\end{cases}"
    if isinstance(shape, Matrix):
        rows = r"\\".join("&".join(as_text(cell) for cell in row) for row in shape.rows)
        return rf"\begin{{pmatrix}}{rows}\end{{pmatrix}}"
    items = [as_text(item) for item in shape.items]
    if shape.kind == "union":
        return r" \cup ".join(items)
    ends = {"list": ("", ""), "set": (r"\{", r"\}"), "tuple": ("(", ")")}.get(shape.kind) or tuple(shape.kind)
    return ends[0] + ",".join(items) + ends[1]
