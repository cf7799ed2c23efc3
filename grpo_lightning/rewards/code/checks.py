"""The asserts of a test as reports, with the expected constants taken out of them, and what the reports must be.

``assert f(2) == 3`` becomes ``__check__(0, f(2))``: the child that runs it reports what ``f(2)`` is, and the comparison
with 3 is made in the trainer. So a solution can neither look up what is expected nor return an object that calls itself
equal to everything. Of ``f(2) == g(2)`` both sides are reported, and of any other assert the truth of its condition.
Other statements that fail where something is wrong (a ``try`` with an assert in it, a ``with raises(...)``, a call of
``assertEqual``, an ``if`` that raises) are followed by a report that they have been passed: what reports nothing has
checked nothing.
"""

from __future__ import annotations

import ast
import fractions
import json
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any


def _same(value: Any, expected: Any) -> bool:
    return type(value) is type(expected) and value == expected


_COMPARISONS: dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Eq: ("==", operator.eq),
    ast.NotEq: ("!=", operator.ne),
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
    ast.Is: ("is", _same),
    ast.IsNot: ("is not", lambda value, expected: not _same(value, expected)),
    ast.In: ("in", lambda value, expected: value in expected),
    ast.NotIn: ("not in", lambda value, expected: value not in expected),
}


class Opaque:
    """Stands for a value that is no plain data; equal to nothing."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return False


@dataclass(frozen=True, kw_only=True)
class Check:
    """What a reported value must be."""

    holds: Callable[..., Any]
    """Of the value; or of its truth in Python's sense, as seen by the child; or of two values."""
    of_truth: bool = False
    of_two: bool = False

    def passes(self, truth: Any, value: Any, *, apart: bool = False) -> bool:
        """Whether a report is right.

        Of two values, the child's comparison counts if both are no plain data, or if the solution had no part in it.

        Args:
            apart: the test was run in a process of its own.
            truth: of the value, or of the comparison; true, false or what was raised.
            value: as ``child`` encodes it.
        """
        if self.of_truth:
            return isinstance(truth, bool) and bool(self.holds(truth))
        if not self.of_two:
            return bool(self.holds(decoded(value)))
        if apart:
            return truth is True
        one, other = decoded(value)
        return truth is True if _is_opaque(one) and _is_opaque(other) else bool(self.holds(one, other))


@dataclass(frozen=True, kw_only=True)
class TestProgram:
    """One test: a program for the child, and the checks whose values it reports."""

    __test__ = False

    source: str
    checks: Sequence[Check]
    required: frozenset[int] = frozenset()
    """Checks that must have been reported: those that stand in no branch, loop or function."""
    apart: bool = False
    """Run in a process of its own, which the solution is no part of."""
    names: frozenset[str] = frozenset()
    """What it is given of the solution."""
    classes: frozenset[str] = frozenset()
    """Of these, classes under test."""

    def holds(self, written: bytes) -> bool:
        """Whether the program came to its end, reported a check, and every check that it reported holds.

        Args:
            written: the child's report: a line for each checked value, then ``done``.
        """
        *lines, last = written.split(b"\n")
        try:
            reports = [json.loads(line) for line in lines]
            reported = {number for number, _, _ in reports}
            good = all(self.checks[number].passes(truth, value, apart=self.apart) for number, truth, value in reports)
        except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError, MemoryError):
            return False
        return last == b"done" and good and bool(reported) and self.required <= reported


def decoded(value: Any) -> Any:
    """The Python value of a report (see ``child``): numbers, text, lists, tuples, sets, dicts and nothing else."""
    if not isinstance(value, list):
        return value
    kind, *parts = value
    if kind in ("list", "tuple", "set"):
        entries = [decoded(part) for part in parts[0]]
        return entries if kind == "list" else tuple(entries) if kind == "tuple" else set(entries)
    if kind == "dict":
        return {decoded(key): decoded(entry) for key, entry in parts[0]}
    if kind == "int":
        return int(parts[0], 16)
    if kind == "complex":
        return complex(*parts)
    if kind == "bytes":
        return bytes.fromhex(parts[0])
    if kind == "ratio":
        return fractions.Fraction(int(parts[0], 16), int(parts[1], 16))
    return Opaque()


def _is_opaque(value: Any) -> bool:
    """Whether a value is, or holds, what is no plain data."""
    if isinstance(value, dict):
        return any(map(_is_opaque, (*value.keys(), *value.values())))
    if isinstance(value, list | tuple | set):
        return any(map(_is_opaque, value))
    return isinstance(value, Opaque)


# --- asserts into checks ----------------------------------------------------------------------------------------------


class Rewriter(ast.NodeTransformer):
    """Turns the asserts of a program into reports and keeps what they must be."""

    def __init__(self) -> None:
        self.checks: list[Check] = []

    def visit(self, node: ast.AST) -> Any:
        """A node; behind a statement that is a check by itself, the report that it has been passed."""
        if not isinstance(node, ast.stmt) or isinstance(node, ast.Assert) or not is_check(node):
            return super().visit(node)
        # A test that expects an AssertionError, or any exception, needs the assert.
        kept = node if isinstance(node, ast.Try) else self.generic_visit(node)
        passed = self._call(Check(holds=bool, of_truth=True), ast.Constant(True))
        return [kept, ast.copy_location(ast.Expr(passed), node)]

    def visit_Assert(self, node: ast.Assert) -> list[ast.stmt]:
        return [ast.copy_location(ast.Expr(call), node) for call in self._calls(node.test)]

    def _calls(self, test: ast.expr) -> Iterable[ast.expr]:
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            for part in test.values:
                yield from self._calls(part)
        elif isinstance(test, ast.Compare) and len(test.ops) == 1:
            yield self._comparison(test.left, test.ops[0], test.comparators[0])
        elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            yield self._call(Check(holds=operator.not_, of_truth=True), test.operand)
        else:
            yield self._call(Check(holds=bool, of_truth=True), test)

    def _comparison(self, left: ast.expr, kind: ast.cmpop, right: ast.expr) -> ast.expr:
        symbol, compare = _COMPARISONS[type(kind)]
        if _is_constant(right):
            expected = ast.literal_eval(right)
            return self._call(Check(holds=lambda value: compare(value, expected)), left)
        if _is_constant(left) and isinstance(kind, ast.Eq | ast.NotEq):
            constant = ast.literal_eval(left)
            return self._call(Check(holds=lambda value: compare(value, constant)), right)
        if isinstance(kind, ast.Is | ast.IsNot):  # which no object can feign
            return self._call(Check(holds=bool, of_truth=True), ast.Compare(left, [kind], [right]))
        return self._call(Check(holds=compare, of_two=True), left, ast.Constant(symbol), right)

    def _call(self, check: Check, *values: ast.expr) -> ast.expr:
        self.checks.append(check)
        number = ast.Constant(len(self.checks) - 1)
        return ast.Call(func=ast.Name("__check__", ast.Load()), args=[number, *values], keywords=[])


def _is_constant(node: ast.expr) -> bool:
    """Whether it is a number, text, or a list, tuple, set or dict of such."""
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def is_check(node: ast.AST) -> bool:
    """Whether a statement fails where something is wrong."""
    if isinstance(node, ast.Assert):
        return True
    if isinstance(node, ast.Try):
        return any(is_check(n) or isinstance(n, ast.Raise) for part in node.body for n in ast.walk(part))
    if isinstance(node, ast.If):
        return any(isinstance(part, ast.Raise) for part in (*node.body, *node.orelse))
    if isinstance(node, ast.With | ast.AsyncWith):
        return any(_is_assertion(item.context_expr) for item in node.items)
    return isinstance(node, ast.Expr) and _is_assertion(node.value)


def _is_assertion(node: ast.expr) -> bool:
    """``self.assertEqual(...)``, ``numpy.testing.assert_allclose(...)``, ``pytest.raises(...)``."""
    if not isinstance(node, ast.Call):
        return False
    name = getattr(node.func, "attr", None) or getattr(node.func, "id", "")
    return str(name).startswith("assert") or name == "raises"
