"""Where a test is run: in the solution's process, or in one of its own, which calls the solution.

A test that is no more than calls of the solution with constants, whose results are reported, gains nothing by a process
of its own. One that computes anything with the results does: what it computes with must not be the solution's. A few
tests need the solution in their own process.
"""

from __future__ import annotations

import ast
import builtins
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from grpo_lightning.rewards.code.link import KNOWN_MODULES

_BUILTINS = frozenset(vars(builtins)) | {"__file__"}
_INSIDE = frozenset({"globals", "locals", "vars", "eval", "exec", "compile", "open", "input"})
"""Functions that need the solution in the test's process."""
_CHANGES = frozenset(
    (
        "append",
        "extend",
        "insert",
        "remove",
        "pop",
        "clear",
        "sort",
        "reverse",
        "add",
        "discard",
        "update",
        "setdefault",
    )
)
"""Methods that change a container."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a test is run, and what of it."""

    body: list[ast.stmt]
    apart: bool
    names: frozenset[str]
    """What it is given of the solution; within the solution's process, only those that are also Python's own."""


def tested_names(body: Sequence[ast.stmt], entry_point: str | None) -> frozenset[str]:
    """The names that a program expects of the solution: those that neither it nor Python defines.

    Where there are none, they are Python's own: ``assert sum(1, 2) == 3`` is about a ``sum`` of the solution's. Then a
    name counts that every assert calls, with no other call in its arguments.
    """
    module = ast.Module(list(body), [])
    imported = {n.module for n in ast.walk(module) if isinstance(n, ast.ImportFrom)}
    used = _loaded(module)
    own = used - _BUILTINS - {name for node in body for name in _bound(node)}
    if "solution" in imported or "solution" in used:
        own |= {"solution"}
    if own:
        return frozenset(own | ({entry_point} if entry_point else set()))
    called = [_innermost(node.test) for node in ast.walk(module) if isinstance(node, ast.Assert)]
    common = set.intersection(*called) if called else set()
    common |= {n.value.id for n in body if isinstance(n, ast.Assign) and isinstance(n.value, ast.Name)}  # candidate =
    return frozenset(common & _BUILTINS)


def class_names(body: Sequence[ast.stmt]) -> frozenset[str]:
    """Names with a capital letter that a program uses as classes.

    It uses attributes of what they make, or operates on two such objects: ``Vector(1, 2) * 3 == Vector(3, 6)``.
    """
    nodes = list(ast.walk(ast.Module(list(body), [])))
    of_variable: dict[str, str | None] = {}

    def maker(node: ast.expr) -> str | None:
        if isinstance(node, ast.Name):
            return of_variable.get(node.id)
        if isinstance(node, ast.BinOp):
            return maker(node.left) or maker(node.right)
        is_made = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id[:1].isupper()
        return node.func.id if is_made else None  # type: ignore[attr-defined]

    for node in nodes:
        if isinstance(node, ast.Assign):
            of_variable.update(
                {target.id: maker(node.value) for target in node.targets if isinstance(target, ast.Name)}
            )
    found = {maker(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    for node in nodes:
        if isinstance(node, ast.BinOp | ast.Compare):
            found |= {maker(node.left)} & {maker(node.right if isinstance(node, ast.BinOp) else node.comparators[0])}
    return frozenset(name for name in found if name is not None)


def place(module: ast.Module, tested: frozenset[str]) -> Place:
    """Where a test is run.

    Args:
        module: its statements, the asserts made into reports.
        tested: the names that the whole program expects of the solution.
    """
    body = list(_with_solution_names(module.body))
    own = tested & _BUILTINS
    needed = _without_unused(body)
    if all(_is_plain(node, own) for node in needed):
        return Place(body=needed, apart=False, names=own)
    if _needs_solution_inside(body, own):
        return Place(body=module.body, apart=False, names=own)
    names = (_loaded(ast.Module(body, [])) - _BUILTINS - {"__check__", "__test__"}) | own
    return Place(body=body, apart=True, names=frozenset(names))


def _loaded(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _bound(node: ast.stmt) -> set[str]:
    """Names that a statement at the top level gives a value."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    imports = [n for n in ast.walk(node) if isinstance(n, ast.Import | ast.ImportFrom)]
    of_solution = [n for n in imports if isinstance(n, ast.ImportFrom) and n.module == "solution"]
    aliases = itertools.chain.from_iterable(n.names for n in imports if n not in of_solution)
    names |= {alias.asname or alias.name.partition(".")[0] for alias in aliases if alias.name != "solution"}
    return names | {alias.asname for n in of_solution for alias in n.names if alias.asname}


def _innermost(node: ast.expr) -> set[str]:
    """The functions called in an expression with no other call in their arguments."""
    calls = [n for n in ast.walk(node) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
    return {
        call.func.id
        for call in calls
        if isinstance(call.func, ast.Name) and not any(n in calls for n in ast.walk(call) if n is not call)
    }


def _with_solution_names(body: Iterable[ast.stmt]) -> Iterable[ast.stmt]:
    """``from solution import f`` is not needed where its names are given; of ``f as g``, ``g = f`` stays."""
    for node in body:
        of_names = isinstance(node, ast.ImportFrom) and node.module == "solution"
        of_module = isinstance(node, ast.Import) and [alias.name for alias in node.names] == ["solution"]
        if not isinstance(node, ast.Import | ast.ImportFrom) or not (of_names or of_module):
            yield node
            continue
        for alias in node.names:
            if alias.asname:
                yield ast.Assign([ast.Name(alias.asname, ast.Store())], ast.Name(alias.name, ast.Load()), lineno=0)


def _without_unused(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Without the imports, functions, constants and other names that the last statements do not use."""
    kept: list[ast.stmt] = []
    used: set[str] = set()
    for node in reversed(body):
        if not _is_idle(node) or _bound(node) & used:
            kept.insert(0, node)
            used |= _loaded(node)
    return kept


def _is_idle(node: ast.stmt) -> bool:
    """Whether a statement does nothing but bind names."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return not node.decorator_list
    if isinstance(node, ast.ImportFrom):
        return all(alias.name != "*" for alias in node.names)
    return isinstance(node, ast.Import | ast.Pass) or _is_name_of_constant(node)


def _is_name_of_constant(node: ast.stmt) -> bool:
    is_name = isinstance(node, ast.Assign) and all(isinstance(target, ast.Name) for target in node.targets)
    return isinstance(node, ast.Assign) and is_name and (isinstance(node.value, ast.Name) or _is_literal(node.value))


def _is_literal(node: ast.AST) -> bool:
    allowed = (ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.UnaryOp, ast.USub, ast.Load)
    return all(isinstance(n, allowed) for n in ast.walk(node))


def _is_plain(node: ast.stmt, own: frozenset[str]) -> bool:
    """Whether a statement is a name for a constant, or a report of calls with constants."""
    if _is_name_of_constant(node):
        return True
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return False
    call = node.value
    if not isinstance(call.func, ast.Name) or call.func.id != "__check__":
        return _is_call(call, own)
    return all(_is_call(value, own) for value in call.args[1::2])


def _is_call(node: ast.expr, own: frozenset[str]) -> bool:
    """Whether it is a call of the solution, or of a method of what such a call returns, with plain arguments."""
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute):
        is_own = _is_call(node.func.value, own)
    else:
        is_own = isinstance(node.func, ast.Name) and (node.func.id not in _BUILTINS or node.func.id in own)
    arguments = (*node.args, *(keyword.value for keyword in node.keywords))
    return is_own and all(isinstance(a, ast.Name) or _is_literal(a) or _is_call(a, own) for a in arguments)


def _needs_solution_inside(body: Sequence[ast.stmt], own: frozenset[str]) -> bool:
    """Whether it does what a process of its own cannot: see ``CodeTests``."""
    module = ast.Module(list(body), [])
    used = _loaded(module)
    defined = {name for node in body for name in _bound(node)}
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef) and not _is_test_class(node):
            return True
        decorators = getattr(node, "decorator_list", ())
        if any(_loaded(decorator) - defined - _BUILTINS for decorator in decorators):
            return True
        if _asks_for_class(node, defined) or _changes_attribute(node):
            return True
        if isinstance(node, ast.Attribute) and node.attr == "seed":
            return True
        if isinstance(node, ast.Import | ast.ImportFrom) and _is_unknown(node, used):
            return True
    return bool(_INSIDE & used - own)


def _asks_for_class(node: ast.AST, defined: set[str]) -> bool:
    """``x.__class__``, ``type(x).__name__`` and ``type(x) is Class``, where objects of another process have another."""
    if isinstance(node, ast.Attribute):
        return node.attr == "__class__" or (node.attr == "__name__" and _is_type(node.value))
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
    elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "__check__":
        sides = node.args[1::2]
    else:
        return False
    others = {name for side in sides if not _is_type(side) for name in _loaded(side)}
    return any(map(_is_type, sides)) and bool(others - defined - _BUILTINS)


def _is_type(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "type"


def _changes_attribute(node: ast.AST) -> bool:
    """``x.items.append(3)`` and ``x.items[0] = 3``: what comes from another process is a copy."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGES:
        changed: ast.expr = node.func.value
    elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        changed = node.value
    else:
        return False
    while isinstance(changed, ast.Subscript):
        changed = changed.value
    if not isinstance(changed, ast.Attribute):
        return False
    return not (isinstance(changed.value, ast.Name) and changed.value.id == "self")


def _is_test_class(node: ast.ClassDef) -> bool:
    bases = [ast.unparse(base) for base in node.bases]
    return any(base.endswith("TestCase") for base in bases) or (not bases and node.name.startswith("Test"))


def _is_unknown(node: ast.Import | ast.ImportFrom, used: set[str]) -> bool:
    """Whether it imports, and the test uses, a module whose values may be no plain data, or are of the process."""
    for alias in node.names:
        module = (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
        name = alias.asname or alias.name.partition(".")[0]
        if name == "mock" or module.endswith("mock"):
            return True
        if module.partition(".")[0] not in KNOWN_MODULES and (name in used or name == "*"):
            return True
    return False
