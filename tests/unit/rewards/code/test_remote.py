"""Two ends of a link: objects of the solution as a test sees them, and functions of a test as the solution does."""

from __future__ import annotations

import contextlib
import socket
import threading
import types
from collections.abc import Iterator

import pytest

from grpo_lightning.rewards.code.link import MESSAGE_LIMIT, SolutionEnd
from grpo_lightning.rewards.code.remote import Remote, TestEnd, unwrapped

SOLUTION = """
import collections
class Pair:
    def __init__(self, x): self.x = x
    def __eq__(self, other): return True
    def __add__(self, other): return Pair(self.x + getattr(other, "x", 1))
    def __sub__(self, other): return 0.0
    def __abs__(self): return 7
    def __hash__(self): return 3
Point = collections.namedtuple("Point", "x y")
class Low(KeyError): pass
def pair(): return Pair(1)
def point(): return Point(1, 2)
def change(a, b): a.append(3); b.clear()
def apply(g, *a): return g(*a)
def count(it): return [n + 1 for n in it]
def same(g): return g
def low(): raise Low("a", object)
def leave(): raise SystemExit(0)
def large(): return "x" * (9 << 20)
"""
NAMES = [
    "Pair",
    "pair",
    "point",
    "change",
    "apply",
    "count",
    "same",
    "low",
    "leave",
    "large",
    "Low",
    "solution",
    "missing",
]


@pytest.fixture
def names() -> Iterator[types.SimpleNamespace]:
    ours, theirs = socket.socketpair()
    module = types.ModuleType("solution")
    exec(SOLUTION, module.__dict__)

    def serve() -> None:
        with theirs, contextlib.suppress(EOFError):
            SolutionEnd(theirs, module).serve()

    thread = threading.Thread(target=serve)
    thread.start()
    yield types.SimpleNamespace(**TestEnd(ours, ["Pair"]).names(NAMES))
    ours.close()
    thread.join()


def test_names(names):
    assert not hasattr(names, "missing")
    assert isinstance(names.solution.pair(), Remote)
    assert (names.pair.__name__, names.solution.pair) == ("pair", names.pair)


def test_operators_with_values_are_not_the_objects(names):
    thing = names.pair()
    assert (thing == 1, thing == None, thing != 1, thing in [1]) == (False, False, True, False)  # noqa: E711
    for compute in (lambda: thing - 1, lambda: 1 - thing, lambda: abs(thing), lambda: thing < 1, lambda: thing + 1):
        with pytest.raises(TypeError):
            compute()
    assert thing == names.pair()
    assert abs(names.pair() - names.pair()) == 0.0
    assert isinstance(thing, names.Pair)
    assert not isinstance(1, names.Pair)


def test_operators_of_a_class_under_test(names):
    assert names.Pair(1) == 5
    assert ((names.Pair(1) + 2).x, abs(names.Pair(1) + 2)) == (2, 7)
    assert len({names.Pair(1), names.Pair(2)}) == 1


def test_objects_made_from_plain_types_are_computed_with(names):
    point = names.point()
    assert isinstance(point, Remote)
    assert (point == (1, 2), point + (3,), point.x, [point] == [(1, 2)]) == (True, (1, 2, 3), 1, True)  # noqa: RUF005
    assert unwrapped({"a": [point]}) == {"a": [(1, 2)]}


def test_arguments_are_changed_in_place(names):
    one, other = [1], {2: 3}
    names.change(one, other)
    assert (one, other) == ([1, 3], {})


def test_functions_and_iterators_of_the_test(names):
    def double(x: int) -> int:
        return 2 * x

    assert names.apply(double, 4) == 8
    assert names.apply(lambda g: names.apply(g, 1), double) == 2
    assert names.apply(len, [1]) == 1
    assert names.same(double) is double
    assert names.count(iter([1, 2])) == [2, 3]
    with pytest.raises(ZeroDivisionError):
        names.apply(lambda: 1 / 0)
    with pytest.raises(TypeError, match="cannot be given"):
        names.same(types.SimpleNamespace())


def test_exceptions(names):
    with pytest.raises(names.Low) as caught:
        names.low()
    assert issubclass(names.Low, KeyError)
    assert caught.value.args == ("a", "<class 'object'>")
    with pytest.raises(SystemExit):
        names.leave()
    with pytest.raises(AttributeError):
        names.pair().missing  # noqa: B018


def test_large_values_are_refused(names):
    assert MESSAGE_LIMIT < 9 << 20
    with pytest.raises(MemoryError):
        names.large()
    assert names.point().x == 1
