"""What computes with a solution's results is kept away from the solution; what needs the solution stays with it."""

from __future__ import annotations

import ast

import pytest

from grpo_lightning.rewards.code.places import class_names
from grpo_lightning.rewards.code.programs import cut


@pytest.mark.parametrize(
    ("text", "apart"),
    [
        ("assert f(1) == 2", False),
        ("assert f(g(1), x=[2]) == 2", False),
        ("assert Solution().f(1) == 2", False),
        ("assert f(1) == g(1)", False),
        ("x = [1]\nassert f(x) == 2", False),
        ("x = 2\nassert f(1) == x", True),
        ("assert abs(f(1) - 2) < 1e-6", True),
        ("assert -f(1) == 2", True),
        ("assert f(1)[0] == 2", True),
        ("assert sorted(f(1)) == [2]", True),
        ("import math\nassert math.isclose(f(1), 2)", True),
        ("assert math.isclose(f(1), 2)", True),
        ("for x in range(3): assert f(x) == x", True),
        ("f(1)\nx = 3\nassert f(1) == x", True),
        ("import io\nassert io.StringIO().write(f(1)) == 2", False),
        ("import io\nassert abs(f(1)) == 2", True),
        ("import random\nrandom.seed(0)\nassert abs(f(1)) == 2", False),
        ("from unittest import mock\nassert abs(f(1)) == 2", False),
        ("s = Stack()\ns.items.append(1)\nassert s.size + 0 == 1", False),
        ("s = Stack()\ns.items[0][1] = 1\nassert s.size + 0 == 1", False),
        ("s = Stack()\ns.append(1)\nassert s.items[0] == 1", True),
        ("assert type(f(1)) == list", True),
        ("d = Dog()\nassert type(d) is Dog", False),
        ("d = Dog()\nassert Dog == type(d)", False),
        ("assert type(Dog()).__name__ == 'Dog'", False),
        ("class A(Base): pass\nassert A().f() + 1 == 2", False),
        ("assert abs(eval('f(1)')) + f(1) == 2", False),
    ],
)
def test_where_a_test_is_run(text, apart):
    assert cut(text, None)[-1].apart is apart


@pytest.mark.parametrize(
    ("text", "entry", "names"),
    [
        ("assert abs(f(1) - 2) < 1e-6", None, {"f"}),
        ("assert abs(sum(1, 2) - 2) < 1e-6\nassert sum(1, 1) == 2", None, {"sum"}),
        ("assert abs(f(1) - 2) < 1e-6", "f", {"f"}),
        ("def check(candidate):\n    assert abs(candidate(1) - 2) < 1e-6", "max", {"max", "candidate"}),
        ("from solution import f as g\nassert g(1) + 1 == 2", None, {"f", "g"}),
        ("import solution\nassert solution.f(1) + 1 == 2", None, {"solution"}),
    ],
)
def test_what_is_the_solutions(text, entry, names):
    assert cut(text, entry)[0].names == names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("s = Stack()\ns.push(1)", {"Stack"}),
        ("Solution().f(1)", {"Solution"}),
        ("assert Vector(1) * 3 == Vector(3)", {"Vector"}),
        ("assert abs(Area(2) - 3.14) < 1e-6", set()),
        ("assert Area(2) == 3.14", set()),
        ("f(1).x", set()),
    ],
)
def test_classes_under_test(text, names):
    assert class_names(ast.parse(text).body) == names
