"""Test programs cut into one program per test.

A test is an assert at the top level, or at that of HumanEval's ``check``, a function ``test_...``, or a method
``test...`` of a ``unittest.TestCase`` or of a plain class ``Test...``. The other statements are the setup of each.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Sequence

from grpo_lightning.rewards.code.checks import Rewriter, TestProgram, is_check
from grpo_lightning.rewards.code.places import class_names, place, tested_names

_RUNNERS = ("unittest.main(", "pytest.main(", "TextTestRunner(")


def cut(program: str, entry_point: str | None) -> list[TestProgram]:
    """The tests of a program.

    Earlier asserts are run with a test only where it uses variables that the program itself sets. A program with none
    of these tests is one test, if it checks anything.

    Args:
        program: Python text.
        entry_point: name of the function that ``check(candidate)`` is to be called with, if the program does not call.

    Raises:
        SyntaxError: if it is no Python.
        ValueError: if nothing in it would be checked, or it uses nothing of the solution.
    """
    body = _without_check_function(list(_prepared(ast.parse(program).body)), entry_point)
    names = tested_names(body, entry_point)
    tests = [(test, required) for test, required in _tests(body) if _checks_something(test)]
    if not tests:
        raise ValueError("no assert in the tests would be run")
    if not names:
        raise ValueError("the tests use nothing that they do not define themselves")
    classes = class_names(body)
    return [_test(test, names, classes, required=required) for test, required in tests]


def _prepared(body: Iterable[ast.stmt]) -> Iterable[ast.stmt]:
    """What stands under ``if __name__ == "__main__"`` without the condition, and nothing that runs the tests."""
    for node in body:
        if isinstance(node, ast.If) and ast.unparse(node.test).replace('"', "'") == "__name__ == '__main__'":
            yield from _prepared(node.body)
        elif isinstance(node, ast.ClassDef) or not any(runner in ast.unparse(node) for runner in _RUNNERS):
            yield node


def _tests(body: Sequence[ast.stmt]) -> Iterable[tuple[list[ast.stmt], int]]:
    """The statements of each test, and how many of the last must have reported."""
    calls = [call for node in body for call in _calls(node)]
    if not calls and not any(isinstance(node, ast.Assert) for node in body):
        yield list(body), 0
        return
    is_variable = {
        target.id
        for node in body
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        for target in ast.walk(node)
        if isinstance(target, ast.Name) and isinstance(target.ctx, ast.Store) and target.id != "candidate"
    }
    for index, node in enumerate(body):
        if isinstance(node, ast.Assert):
            shared = _names(node) & is_variable
            before = [_evaluated(n) if isinstance(n, ast.Assert) else n for n in body[:index] if _needed(n, shared)]
            yield [*before, node], 1
    setup = [node for node in body if not isinstance(node, ast.Assert)]
    for call in calls:
        yield [*setup, *ast.parse(call).body], 0


def _calls(node: ast.stmt) -> list[str]:
    """What runs the tests that a function or class is or holds."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return _calls_of(node, "test_", node.name, 0)
    if not isinstance(node, ast.ClassDef) or node.decorator_list:
        return []
    bases = [ast.unparse(base) for base in node.bases]
    methods = [n for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    if any(base.endswith("TestCase") for base in bases):
        names = [method.name for method in methods if _calls_of(method, "test", "", 1)]
        return [f"__import__('unittest').TestSuite([{node.name}('{name}')]).debug()" for name in names]
    if bases not in ([], ["object"]) or not node.name.startswith("Test"):
        return []
    lines = [f"__test__ = {node.name}()"]
    for method in methods:
        if method.name in ("setup_class", "setup_method"):
            lines.append(f"__test__.{method.name}({'None' if len(method.args.args) > 1 else ''})")
    return [
        "\n".join([*lines, call])
        for method in methods
        for call in _calls_of(method, "test", f"__test__.{method.name}", 1)
    ]


def _calls_of(function: ast.FunctionDef | ast.AsyncFunctionDef, prefix: str, name: str, given: int) -> list[str]:
    """The calls of a test function: none if it wants fixtures, which nobody provides, or is decorated otherwise.

    Args:
        function: or method.
        prefix: of the names of tests.
        name: what it is called as.
        given: arguments that it has in any case.
    """
    arguments = function.args
    required = len(arguments.posonlyargs) + len(arguments.args) - len(arguments.defaults) - given
    if not function.name.startswith(prefix) or any(default is None for default in arguments.kw_defaults):
        return []
    calls = [f"{name}()"] if required == 0 else []
    for decorator in function.decorator_list:
        kind = ast.unparse(decorator)
        if kind.startswith("pytest.mark.parametrize(") and len(function.decorator_list) == 1:
            sets = _parameters(decorator)
            calls = [f"{name}(**{{{one}}})" for one, count in sets if count >= required]
        elif not kind.startswith(("pytest.mark.timeout", "pytest.mark.asyncio")):
            return []
    is_coroutine = isinstance(function, ast.AsyncFunctionDef)
    return [f"__import__('asyncio').run({call})" if is_coroutine else call for call in calls]


def _parameters(decorator: ast.expr) -> Iterable[tuple[str, int]]:
    """Of ``parametrize("a, b", [(1, 2), (3, 4)])``, the entries ``'a': 1, 'b': 2`` of each call, and how many."""
    if not isinstance(decorator, ast.Call) or len(decorator.args) != 2:
        return
    names, values = decorator.args
    if isinstance(names, ast.Constant) and isinstance(names.value, str):
        keys = [name.strip() for name in names.value.split(",") if name.strip()]
    elif isinstance(names, ast.Tuple | ast.List):
        keys = [str(getattr(name, "value", "")) for name in names.elts]
    else:
        return
    for one in values.elts if isinstance(values, ast.Tuple | ast.List) else []:
        parts = [one] if len(keys) == 1 else one.elts if isinstance(one, ast.Tuple | ast.List) else []
        if len(parts) == len(keys) and "pytest.param" not in ast.unparse(one):
            yield ", ".join(f"{key!r}: {ast.unparse(part)}" for key, part in zip(keys, parts, strict=True)), len(keys)


def _checks_something(body: Sequence[ast.stmt]) -> bool:
    """Whether a check stands where it may be run: not in a function or class that nothing that is run names."""
    named: dict[str, list[ast.AST]] = {}
    for node in ast.walk(ast.Module(list(body), [])):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            named.setdefault(node.name, []).extend(node.body)
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop()
        if is_check(node):
            return True
        for field in ("id", "attr", "value"):  # of a name, an attribute, or a text: unittest names methods by text
            name = getattr(node, field, None)
            waiting += named.pop(name, []) if isinstance(name, str) else []
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            waiting += ast.iter_child_nodes(node)
    return False


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


def _names(node: ast.AST) -> set[str]:
    return {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}


def _needed(node: ast.stmt, shared: set[str]) -> bool:
    return not isinstance(node, ast.Assert) or bool(_names(node) & shared)


def _evaluated(node: ast.Assert) -> ast.stmt:
    return ast.Expr(node.test)


def _test(body: Sequence[ast.stmt], tested: frozenset[str], classes: frozenset[str], *, required: int) -> TestProgram:
    """A program of its own.

    Args:
        body: its statements.
        tested: what the whole program tests.
        classes: of these, classes.
        required: how many of the last statements' checks must be reported.
    """
    rewriter = Rewriter()
    statements: list[ast.stmt] = []
    first_required = 0
    for index, node in enumerate(body):
        if index == len(body) - required:
            first_required = len(rewriter.checks)
        written = rewriter.visit(copy.deepcopy(node))
        statements += written if isinstance(written, list) else [written]
    needed = frozenset(range(first_required, len(rewriter.checks))) if required else frozenset()
    module = ast.fix_missing_locations(ast.Module(statements, []))
    where = place(module, tested)
    return TestProgram(
        source=ast.unparse(ast.fix_missing_locations(ast.Module(where.body, []))),
        checks=rewriter.checks,
        required=needed,
        apart=where.apart,
        names=where.names,
        classes=classes,
    )
