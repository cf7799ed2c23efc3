r"""Whether a gold answer can be read at all, found without algebra where its notation is common.

``well_formed`` knows a small grammar: sums, products, powers and indices of numbers, letters, brackets, ``\frac``,
``\sqrt``, ``\binom`` and the usual functions. What it accepts the LaTeX parser reads as well; what it does not know is
left to that parser.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from grpo_lightning.rewards.answers.comparison import as_text
from grpo_lightning.rewards.answers.equivalence import is_plain
from grpo_lightning.rewards.answers.notation import normal_form
from grpo_lightning.rewards.answers.numbers import without_units
from grpo_lightning.rewards.answers.readings import read_answer
from grpo_lightning.rewards.answers.shapes import Equation, Group, Matrix, Pieces, Relation, Shape, Value
from grpo_lightning.rewards.answers.structure import parse_shape

DEEPEST = 20
"""Nested brackets that the grammar follows."""
_LONGEST = 500
_TOKEN = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+|\\[A-Za-z]+|[A-Za-z]|[-+*/^_!%°(){}\[\]|])")
_LETTERS = frozenset(
    (r"\pi", r"\theta", r"\alpha", r"\beta", r"\gamma", r"\delta", r"\lambda", r"\mu", r"\omega", r"\phi", r"\infty")
)
_FUNCTIONS = frozenset((r"\sin", r"\cos", r"\tan", r"\cot", r"\sec", r"\csc", r"\log", r"\ln", r"\arcsin", r"\arctan"))
_SIGNS = frozenset("+-")
_TIMES = frozenset(("*", "/", r"\cdot", r"\times", r"\div"))
_PAIRS = {"(": ")", "{": "}", "|": "|"}


def is_readable(gold: str, parses: Callable[[str], bool]) -> bool:
    """Whether every value in a gold answer is a number, a word or mathematics.

    Args:
        gold: the answer as written.
        parses: asked about a value that is neither plain nor well formed.
    """
    text = normal_form(gold)
    return bool(text) and (read_answer(gold, text) is not None or _readable(parse_shape(text), parses))


def _readable(shape: Shape, parses: Callable[[str], bool]) -> bool:
    if isinstance(shape, Group):
        return all(_readable(item, parses) for item in shape.items)
    if isinstance(shape, Matrix):
        return all(_readable(cell, parses) for row in shape.rows for cell in row)
    if isinstance(shape, Pieces):
        return all(_readable(part, parses) for piece in shape.pieces for part in piece if part is not None)
    if isinstance(shape, Equation):
        sides = [Value(side) for side in (shape.sides[1:] if shape.names_its_value else shape.sides)]
        return all(_readable(side, parses) for side in sides[:-1]) and _readable(shape.value, parses)
    if isinstance(shape, Relation) and shape.sides:
        if all(_readable(Value(side), lambda _: False) for side in shape.sides):
            return True
        return parses(shape.text)
    text = as_text(shape)
    return is_plain(text) or well_formed(text) or parses(text)


def well_formed(text: str) -> bool:
    """Whether a value in normal form follows the small grammar; False also means "do not know"."""
    text = without_units(text)
    if not text or len(text) > _LONGEST:
        return False
    tokens: list[str] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            return not text[position:].strip() and _Reader(tokens).reads_all()
        tokens.append(match[1])
        position = match.end()
    return _Reader(tokens).reads_all()


class _Reader:
    """Recursive descent over tokens; every method moves on and says whether it found what it is named after."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.next = 0
        self.depth = 0

    def reads_all(self) -> bool:
        return self._sum() and self.next == len(self.tokens)

    def _peek(self) -> str:
        return self.tokens[self.next] if self.next < len(self.tokens) else ""

    def _take(self, token: str) -> bool:
        found = self._peek() == token
        self.next += found
        return found

    def _sum(self) -> bool:
        if self._peek() in _SIGNS:
            self.next += 1
        if not self._product():
            return False
        while self._peek() in _SIGNS:
            self.next += 1
            if not self._product():
                return False
        return True

    def _product(self) -> bool:
        if not self._power():
            return False
        while True:
            if self._peek() in _TIMES:
                self.next += 1
                if not self._power():
                    return False
            elif self._starts_factor(self._peek()):
                if not self._power():
                    return False
            else:
                return True

    @staticmethod
    def _starts_factor(token: str) -> bool:
        return bool(token) and (
            token[0].isalnum()
            or token in ("(", "{", r"\frac", r"\sqrt", r"\binom")
            or token in _LETTERS
            or token in _FUNCTIONS
        )

    def _power(self) -> bool:
        if not self._factor():
            return False
        while self._peek() in ("^", "_", "!", "%", "°"):
            if self._peek() == "_" and not self.tokens[self.next - 1][-1].isalpha():
                return False
            self.next += 1
            if self.tokens[self.next - 1] in ("^", "_") and not self._argument():
                return False
        return True

    def _argument(self) -> bool:
        return self._bracket("{") if self._peek() == "{" else self._peek()[:1].isalnum() and self._take(self._peek())

    def _bracket(self, opened: str) -> bool:
        self.depth += 1
        if self.depth > DEEPEST or not self._take(opened):
            return False
        found = self._sum() and self._take(_PAIRS[opened])
        self.depth -= 1
        return found

    def _factor(self) -> bool:
        token = self._peek()
        if token in _PAIRS:
            return self._bracket(token)
        if not self._starts_factor(token):
            return False
        self.next += 1
        if token in (r"\frac", r"\binom"):
            return self._bracket("{") and self._bracket("{")
        if token == r"\sqrt":
            if self._take("["):
                return self._sum() and self._take("]") and self._bracket("{")
            return self._bracket("{")
        if token in _FUNCTIONS:
            while self._peek() in ("^", "_"):
                self.next += 1
                if not self._argument():
                    return False
            return self._power()
        return True
