r"""Whether an answer says the same as the gold one.

``compare`` walks the two shapes (``structure``) and asks an *oracle* about the values in them. Its verdict is True,
False or None for "cannot tell": the cheap oracle here knows numbers and words and never does algebra; the one in
``symbolic`` decides the rest in a worker process.

What counts as the same, where there is a choice:

- values are exact; see ``numbers.same_number`` for the two allowances (percent, long decimals of endless fractions);
- units, currency and a name (``x =``) may be missing on either side; degrees may be radians if written with ``\pi``;
- bare lists and sets are unordered and count repeats; a point may be written as a bare list or a vector, not as a set;
- ``x > 5`` is ``(5,\infty)``; an equation equals its multiples; choice letters equal only themselves.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

from grpo_lightning.rewards.answers.notation import normal_form
from grpo_lightning.rewards.answers.numbers import parse_number, same_number, without_units
from grpo_lightning.rewards.answers.structure import (
    Equation,
    Group,
    Matrix,
    Relation,
    Shape,
    Value,
    parse_list,
    parse_shape,
)

LONGEST_ANSWER = 2_000
"""Characters; a longer answer is right only if its normal form is the gold one."""

_CHOICE = re.compile(r"\(?⟦?\(?(?:(?:[Oo]ption|[Cc]hoice|[Aa]nswer)\s+)?\(?([A-Z])\)?⟧?\)?")
_CHOICE_WITH_TEXT = re.compile(r"\(?⟦?\(?([A-Z])\)⟧?\)?[\s:.]*\S.*", re.DOTALL)
_WORD = re.compile(r"[^\W\d_][\w\s'.-]*")
_BASED = re.compile(r"(\d+)\s*_\s*\{?\s*(?:⟦)?\s*(\w+)\s*(?:⟧)?\s*\}?")
_OPERATOR = re.compile(r"\\(?:frac|sqrt|cdot|times|pi|binom|pm)(?![a-z])")
_LETTER = re.compile(r"[A-Za-z⟦]")


class Oracle(Protocol):
    """Decides about two texts without shape; None means that it cannot tell."""

    def same_value(self, gold: str, answer: str) -> bool | None:
        """Whether two values are equal."""

    def same_equation(self, gold: tuple[str, str], answer: tuple[str, str]) -> bool | None:
        """Whether two equations, left and right side each, have the same solutions."""

    def same_relation(self, gold: str, answer: str) -> bool | None:
        """Whether two inequalities or sets of numbers are the same."""


class QuickOracle:
    """Numbers, words and identical texts; never any algebra."""

    def same_value(self, gold: str, answer: str) -> bool | None:
        if gold == answer:
            return True
        gold_number, number = parse_number(gold), parse_number(answer)
        if gold_number is not None and number is not None:
            return same_number(gold_number, number)
        choice = _CHOICE.fullmatch(gold)
        if choice:
            found = _CHOICE.fullmatch(answer) or _CHOICE_WITH_TEXT.fullmatch(answer)
            return found is not None and found.group(1) == choice.group(1)
        based, other = _BASED.fullmatch(gold), _BASED.fullmatch(answer)
        if based:
            # The question names the base, so the answer may leave it out.
            return other.groups() == based.groups() if other else answer == based.group(1)
        gold_word, word = as_word(gold), as_word(answer)
        if gold_word and word:
            if gold_word == word:
                return True
            return False if "⟦" in gold + answer or min(len(gold_word), len(word)) > 3 else None
        if gold_number is not None and ("⟦" in without_units(answer) or word):
            return False
        gold, answer = without_units(gold), without_units(answer)
        return True if gold.replace(" ", "") == answer.replace(" ", "") else None

    def same_equation(self, gold: tuple[str, str], answer: tuple[str, str]) -> bool | None:
        return True if gold == answer else None

    def same_relation(self, gold: str, answer: str) -> bool | None:
        return True if gold.replace(" ", "") == answer.replace(" ", "") else None


def quick_verdict(gold: str, answer: str) -> bool | None:
    """The verdict where no algebra is needed; None otherwise."""
    return compare_texts(gold, answer, QuickOracle())


def compare_texts(gold: str, answer: str, oracle: Oracle) -> bool | None:
    """Compare two answers as written; ``compare`` says how."""
    if len(answer) > 4 * LONGEST_ANSWER:
        return False
    gold, answer = normal_form(gold), normal_form(answer)
    if not gold or not answer:
        return False
    if gold == answer:
        return True
    if max(len(gold), len(answer)) > LONGEST_ANSWER:
        return False
    return compare(parse_shape(gold), parse_shape(answer), oracle)


def compare(gold: Shape, answer: Shape, oracle: Oracle) -> bool | None:
    """Whether two shapes are the same answer; the gold one decides what is asked for."""
    if isinstance(gold, Relation) or isinstance(answer, Relation):
        return _compare_relations(gold, answer, oracle)
    if isinstance(gold, Equation) or isinstance(answer, Equation):
        return _compare_equations(gold, answer, oracle)
    if isinstance(gold, Matrix) or isinstance(answer, Matrix):
        return _compare_matrices(gold, answer, oracle)
    if isinstance(gold, Value) and isinstance(answer, Value):
        return oracle.same_value(gold.text, answer.text)
    return _compare_groups(gold, answer, oracle)


def _compare_relations(gold: Shape, answer: Shape, oracle: Oracle) -> bool | None:
    if isinstance(gold, Value) or isinstance(answer, Value):
        return False
    texts = as_relation(gold), as_relation(answer)
    return None not in texts and oracle.same_relation(*texts)  # type: ignore[arg-type]


def _compare_equations(gold: Shape, answer: Shape, oracle: Oracle) -> bool | None:
    if not isinstance(answer, Equation):
        assert isinstance(gold, Equation)
        return compare(gold.value, answer, oracle) if gold.names_its_value else False
    if not isinstance(gold, Equation):
        # Every side without a letter is a value by itself: 2+3=5 holds, 6=5 does not.
        values = [Value(side) for side in answer.sides[:-1] if not _LETTER.search(_OPERATOR.sub("", side))]
        claims = [compare(answer.value, value, oracle) for value in values]
        return _all([*claims, compare(gold, answer.value, oracle)])
    if gold.names_its_value and answer.names_its_value:
        verdict = compare(gold.value, answer.value, oracle)
        same_name = gold.sides[0].replace(" ", "") == answer.sides[0].replace(" ", "")
        is_number = isinstance(gold.value, Value) and parse_number(gold.value.text) is not None
        if verdict is not True or same_name or is_number or not isinstance(gold.value, Value):
            return verdict
    sides = (gold.sides[0], gold.sides[-1]), (answer.sides[0], answer.sides[-1])
    return oracle.same_equation(*sides)


def _compare_matrices(gold: Shape, answer: Shape, oracle: Oracle) -> bool | None:
    if isinstance(gold, Matrix) and isinstance(answer, Matrix):
        if [len(row) for row in gold.rows] != [len(row) for row in answer.rows]:
            return False
        return _in_order(sum(gold.rows, ()), sum(answer.rows, ()), oracle)
    matrix, other = (gold, answer) if isinstance(gold, Matrix) else (answer, gold)
    assert isinstance(matrix, Matrix)
    if isinstance(other, Value):  # such as a number times a matrix
        return False if is_plain(other.text) else oracle.same_value(as_text(gold), as_text(answer))
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
        # R minus a point, say, against a union: only algebra can tell.
        is_range = group.kind in ("union", "(]", "[)", "[]") and r"\\" not in value.text and "\\" in value.text
        return oracle.same_relation(as_text(gold), as_text(answer)) if is_range else False
    assert isinstance(gold, Group)
    assert isinstance(answer, Group)
    kinds = {gold.kind, answer.kind}
    if kinds <= {"list", "set"} or kinds == {"union"}:
        verdict = _in_any_order(gold.items, answer.items, oracle)
        return oracle.same_relation(as_text(gold), as_text(answer)) if kinds == {"union"} and not verdict else verdict
    if kinds == {"union", "list"}:  # x < 1 or x > 3
        return _in_any_order(gold.items, answer.items, oracle)
    if kinds <= {"tuple", "list"} or len(kinds) == 1:
        return _in_order(gold.items, answer.items, oracle)
    return False


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


def is_plain(text: str) -> bool:
    """Whether a value can be judged without algebra: a number, a word, a choice letter."""
    return parse_number(text) is not None or as_word(text) is not None or _CHOICE.fullmatch(text) is not None


def as_word(text: str) -> str | None:
    """A name or other word, lower case; None for anything with mathematics in it."""
    bare = text.replace("⟦", " ").replace("⟧", " ").strip(" .")
    return " ".join(bare.split()).casefold() if _WORD.fullmatch(bare) and len(bare) > 1 else None


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
    if isinstance(shape, Matrix):
        rows = r"\\".join("&".join(as_text(cell) for cell in row) for row in shape.rows)
        return rf"\begin{{pmatrix}}{rows}\end{{pmatrix}}"
    items = [as_text(item) for item in shape.items]
    if shape.kind == "union":
        return r" \cup ".join(items)
    ends = {"list": ("", ""), "set": (r"\{", r"\}"), "tuple": ("(", ")")}.get(shape.kind) or tuple(shape.kind)
    return ends[0] + ",".join(items) + ends[1]
