"""Test programs cut into one program per test, with the expected constants taken out of them.

``assert f(2) == 3`` becomes ``__check__(0, f(2))``: the child that runs it reports what ``f(2)`` is, and the comparison
with 3 is made in the trainer. So a solution can neither look up what is expected nor return an object that calls itself
equal to everything. Of ``f(2) == g(2)`` both sides are reported, and of any other assert the truth of its condition.
Asserts inside ``try`` stay.
"""

from __future__ import annotations

import ast
import copy
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

    def passes(self, truth: Any, value: Any) -> bool:
        """Whether a report is right. Where both of two values are no plain data, the child's comparison counts.

        Args:
            truth: of the value, or of the comparison; true, false or what was raised.
            value: as ``child`` encodes it.
        """
        if self.of_truth:
            return isinstance(truth, bool) and bool(self.holds(truth))
        if not self.of_two:
            return bool(self.holds(decoded(value)))
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

    def holds(self, written: bytes) -> bool:
        """Whether the program came to its end and every check that it reported holds.

        Args:
            written: the child's report: a line for each checked value, then ``done``.
        """
        *lines, last = written.split(b"\n")
        try:
            reports = [json.loads(line) for line in lines]
            reported = {number for number, _, _ in reports}
            good = all(self.checks[number].passes(truth, value) for number, truth, value in reports)
        except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError, MemoryError):
            return False
        return last == b"done" and good and self.required <= reported


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


class _Rewriter(ast.NodeTransformer):
    """Turns the asserts of a program into reports and keeps what they must be."""

    def __init__(self) -> None:
        self.checks: list[Check] = []

    def visit_Try(self, node: ast.Try) -> ast.AST:
        return node  # a test that expects an AssertionError, or any exception, needs the assert

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


# --- one program per test ---------------------------------------------------------------------------------------------


def cut(program: str, entry_point: str | None) -> list[TestProgram]:
    """The tests of a program: each assert at its top level, or at that of HumanEval's ``check``, and each ``test_...``.

    The other statements before a test are its setup; earlier asserts are run with it only where they use variables that
    the program itself sets. A program with no such test is one test, passed if it comes to its end.

    Args:
        program: Python text.
        entry_point: name of the function that ``check(candidate)`` is to be called with, if the program does not call.

    Raises:
        SyntaxError: if it is no Python.
    """
    body = _without_check_function(ast.parse(program).body, entry_point)
    asserts = [node for node in body if isinstance(node, ast.Assert)]
    functions = [node.name for node in body if isinstance(node, ast.FunctionDef) and _is_test_function(node)]
    if not asserts and not functions:
        return [_test(body, required=0)]
    is_variable = {
        target.id
        for node in body
        if not isinstance(node, ast.FunctionDef | ast.ClassDef)
        for target in ast.walk(node)
        if isinstance(target, ast.Name) and isinstance(target.ctx, ast.Store) and target.id != "candidate"
    }
    tests = []
    for index, node in enumerate(body):
        if isinstance(node, ast.Assert):
            shared = _names(node) & is_variable
            before = [_evaluated(n) if isinstance(n, ast.Assert) else n for n in body[:index] if _needed(n, shared)]
            tests.append(_test([*before, node], required=1))
    setup = [node for node in body if not isinstance(node, ast.Assert)]
    for name in functions:
        call = ast.Expr(ast.Call(ast.Name(name, ast.Load()), [], []))
        tests.append(_test([*setup, call], required=0))
    return tests


def _without_check_function(body: list[ast.stmt], entry_point: str | None) -> list[ast.stmt]:
    """``def check(candidate): ...`` unfolded, so that each of its asserts is a test by itself."""
    check = next((n for n in body if isinstance(n, ast.FunctionDef) and n.name == "check"), None)
    if check is None or len(check.args.args) != 1:
        return body
    calls = [node for node in body if ast.unparse(node).startswith("check(")]
    if not calls and entry_point is None:
        return body
    function = ast.parse(entry_point or "None").body[0]
    if calls and isinstance(calls[0], ast.Expr) and isinstance(calls[0].value, ast.Call) and calls[0].value.args:
        function = ast.Expr(calls[0].value.args[0])
    assert isinstance(function, ast.Expr)
    if any(isinstance(node, ast.Return | ast.Yield | ast.Global) for node in ast.walk(check)):
        return body if calls else [*body, ast.Expr(ast.Call(ast.Name("check", ast.Load()), [function.value], []))]
    candidate = ast.Assign([ast.Name(check.args.args[0].arg, ast.Store())], function.value, lineno=0)
    return [*(node for node in body if node is not check and node not in calls), candidate, *check.body]


def _is_test_function(node: ast.FunctionDef) -> bool:
    return node.name.startswith("test_") and not node.args.args and not node.decorator_list


def _names(node: ast.AST) -> set[str]:
    return {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}


def _needed(node: ast.stmt, shared: set[str]) -> bool:
    return not isinstance(node, ast.Assert) or bool(_names(node) & shared)


def _evaluated(node: ast.Assert) -> ast.stmt:
    return ast.Expr(node.test)


def _test(body: Sequence[ast.stmt], *, required: int) -> TestProgram:
    """A program of its own.

    Args:
        body: its statements.
        required: how many of the last statements' checks must be reported.
    """
    rewriter = _Rewriter()
    statements: list[ast.stmt] = []
    first_required = 0
    for index, node in enumerate(body):
        if index == len(body) - required:
            first_required = len(rewriter.checks)
        written = rewriter.visit(copy.deepcopy(node))
        statements += written if isinstance(written, list) else [written]
    needed = frozenset(range(first_required, len(rewriter.checks))) if required else frozenset()
    source = ast.unparse(ast.fix_missing_locations(ast.Module(statements, [])))
    return TestProgram(source=source, checks=rewriter.checks, required=needed)
