"""Tests that compute with a solution's results: right solutions of every form are paid, feigned results are not."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import pytest

from grpo_lightning.rewards import CodeTests
from grpo_lightning.rewards.code import runs
from tests.integration.test_code_sandbox import left_behind

pytestmark = pytest.mark.integration


def scores(rows: list[tuple[str, str]]) -> list[float | None]:
    texts = [f"```python\n{code}\n```" for code, _ in rows]
    return CodeTests(time_limit=20.0, total_limit=60.0, workers=2)(texts, tests=[tests for _, tests in rows])


def wrong(rows: list[tuple[str, str]], wanted: float | None) -> list[Any]:
    """The rows whose score is another."""
    return [(score, *row) for row, score in zip(rows, scores(rows), strict=True) if score != wanted]


# --- tests that are run -----------------------------------------------------------------------------------------------

WRONG, RIGHT = "def f(x): return 0", "def f(x): return x + 1"
CASE = "import unittest\nclass T(unittest.TestCase):\n"
FORMS = [
    CASE + "    def test_a(self): self.assertEqual(f(2), 3)",
    CASE + "    def test_a(self): self.assertEqual(f(2), 3)\nunittest.main()",
    CASE + "    def setUp(self): self.x = 2\n    def test_a(self): assert f(self.x) == 3\n"
    "    def test_b(self):\n        with self.assertRaises(TypeError): f(None)\n        self.assertTrue(f(1) == 2)\n"
    "if __name__ == '__main__': unittest.main()",
    "class TestF:\n    x = 2\n    def test_a(self): assert f(self.x) == 3",
    "async def test_a(): assert f(2) == 3",
    "import pytest\n@pytest.mark.parametrize('a, b', [(1, 2), (2, 3)])\ndef test_a(a, b): assert f(a) == b",
    "if __name__ == '__main__':\n    assert f(2) == 3",
    "def run(g):\n    for i in range(3): assert g(i) == i + 1\nrun(f)",
    "from solution import f as g\nassert g(2) - 3 == 0",
    "import solution\nassert solution.f(2) == 3",
]


def test_forms_of_tests(confined):
    assert wrong([(RIGHT, tests) for tests in FORMS], 1.0) == []
    assert wrong([(WRONG, tests) for tests in FORMS], 0.0) == []


def test_what_checks_nothing_pays_nothing():
    rows = [
        ("def f(x): return []", "for x in f(3): assert x > 0"),  # no round of the loop
        (WRONG, CASE + "    def test_a(self): self.skipTest('')\n    def test_b(self): assert f(1) == 3"),
        (WRONG, "def test_a():\n    if f(2): assert f(2) == 3"),
    ]
    assert wrong(rows, 0.0) == []
    assert scores([(RIGHT, "def check(candidate):\n    assert candidate(2) == 3")]) == [None]


# --- results that are feigned -----------------------------------------------------------------------------------------

FEIGNED = {
    "abs": ("abs = lambda *a: 0", "assert abs(f(2) - 3.3) < 1e-3"),
    "all": ("all = lambda *a: True", "assert all(f(i) == 3 for i in (1,))"),
    "isinstance": ("isinstance = lambda *a: True", "assert isinstance(f(2), str)"),
    "round": ("round = lambda *a: ANY", "assert round(f(2), 2) == 3.3"),
    "sorted": ("sorted = lambda *a: ANY", "assert sorted([f(2)]) == [3]"),
    "set": ("set = lambda *a: ANY", "assert set([f(2)]) == set([3])"),
    "range": ("range = lambda *a: []", "for i in range(3): assert f(i) == i + 1"),
    "range in check": ("range = lambda *a: []", "def check(c):\n    for i in range(3): assert c(i) == i + 1\ncheck(f)"),
    "in the process": ("abs = lambda *a: 0", "import io\nio.StringIO()\nassert abs(f(2) - 3.3) < 1e-3"),
    "by Python's own": ("import builtins\nbuiltins.abs = lambda *a: 0", "assert abs(f(2) - 3.3) < 1e-3"),
}


def test_names_of_python_are_pythons():
    rows = [(f"from unittest.mock import ANY\n{code}\ndef f(x): return 0", tests) for code, tests in FEIGNED.values()]
    assert wrong(rows, 0.0) == []
    assert scores([("def sum(a, b): return a + b", "assert sum(1, 2) == 3\nassert abs(sum(1, 1) - 2) < 1e-6")]) == [1.0]
    assert scores([("def sum(a, b): return a - b", "assert sum(1, 2) == 3\nassert abs(sum(1, 1) - 2) < 1e-6")]) == [0.0]


ANYTHING = """
class E:
    def __init__(self, *a): pass
    def __sub__(self, other): return 0.0
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __lt__(self, other): return True
    def __round__(self, n=0): return 7
    def __contains__(self, other): return True
    def __float__(self): return 7.0
    def __abs__(self): return 0.0
    def __hash__(self): return 3
    def all(self): return True
    __rsub__ = __sub__
    __gt__ = __le__ = __ge__ = __lt__
    __array_interface__ = {"shape": (1,), "typestr": "<i8", "data": (8, False), "version": 3}
def f(x): return E()
Area = E
"""
OBJECTS = [
    "assert abs(f(2) - 3.14159) < 1e-6",
    "assert abs(Area(2) - 3.14159) < 1e-6",
    "assert Area(2) == 3.14 + 0 * 1",
    "import datetime\nassert f(2) == datetime.date(2020, 1, 1)",
    "import math\nassert math.isclose(f(2), 3.1)",
    "assert 3 in f(2)",
    "assert f(2) in {k for k in (3,)}",
    "assert round(f(2), 1) == 3",
    "assert -f(2) == 3",
    "x = 7\nassert f(2) == x",
    "assert f(2) - 3 == 0",
    "assert float(f(2)) - 3.0 == 0",
]
ARRAYS = [
    "assert (f(2) == np.array([1, 2])).all()",
    "assert np.allclose(f(2), [1, 2])",
    "assert np.array_equal(f(2), np.array([1, 2]))",
    "np.testing.assert_allclose(f(2), [1.0, 2])",
    "assert np.abs(f(2) - np.array([1.0])).max() < 1e-6",
]


def test_objects_do_not_judge_themselves():
    assert wrong([(ANYTHING, tests) for tests in OBJECTS], 0.0) == []


def test_objects_do_not_judge_themselves_against_arrays():
    pytest.importorskip("numpy")
    assert wrong([(ANYTHING, f"import numpy as np\n{tests}") for tests in ARRAYS], 0.0) == []


def test_modules_of_the_test_are_not_the_solutions():
    patches = (
        "import math\nyes = lambda *a, **k: True\nmath.fabs = lambda *a: 0.0\nmath.isclose = yes\n"
        "def f(x):\n    math.isclose = yes\n    return 0"
    )
    conditions = ["math.isclose(f(2), 3.1)", "math.fabs(f(2) - 3.1) < 1e-3"]
    rows = [(patches, f"import math\nassert {condition}") for condition in conditions]
    rows += [(patches, f"assert {condition}") for condition in conditions]  # which it has from the solution
    rows += [(patches, "from math import isclose\nassert isclose(f(2), 3.1)")]
    assert wrong(rows, 0.0) == []
    pytest.importorskip("numpy")
    patches = (
        "import numpy as np\nnp.allclose = np.array_equal = lambda *a, **k: True\n"
        "np.testing.assert_allclose = lambda *a, **k: None\ndef f(x): return [0, 0]"
    )
    assert wrong([(patches, f"import numpy as np\n{tests}") for tests in ARRAYS[1:4]], 0.0) == []


# --- right solutions --------------------------------------------------------------------------------------------------

VECTOR = """
class Vector:
    def __init__(self, x, y): self.x, self.y = x, y
    def __add__(self, other): return Vector(self.x + other.x, self.y + other.y)
    def __mul__(self, k): return Vector(self.x * k, self.y * k)
    __rmul__ = __mul__
    def __eq__(self, other): return isinstance(other, Vector) and (self.x, self.y) == (other.x, other.y)
    def __hash__(self): return hash(self.x)
    def __repr__(self): return f"V({self.x})"
    def __iter__(self): yield from (self.x, self.y)
    def __contains__(self, k): return k == self.x
    def __getitem__(self, k): return (self.x, self.y)[k]
    def __len__(self): return 2
    def __enter__(self): return self
    def __exit__(self, *a): self.done = True
    @property
    def size(self): return self.x ** 2 + self.y ** 2
    @staticmethod
    def zero(): return Vector(0, 0)
"""
VECTORS = """
v = Vector(1, 2)
assert v + Vector(1, 1) == Vector(2, 3)
assert v * 3 == Vector(3, 6) and 3 * v == Vector(3, 6)
assert v != Vector(1, 3) and v.size - 5 == 0
assert repr(v) == "V(1)" and str(v) == "V(1)" and f"{v}" == "V(1)"
assert list(v) == [1, 2] and len(v) == 2 and v[1] == 2 and 1 in v and 5 not in v
assert isinstance(v, Vector) and isinstance(Vector.zero(), Vector) and not isinstance(3, Vector)
assert len({v, Vector(1, 2)}) == 1
v.x = 4
assert v.x + 1 == 5 and hasattr(v, "size") and not hasattr(v, "other") and Vector.__name__ == "Vector"
with Vector(1, 2) as entered: assert entered.y + 0 == 2
assert entered.done
"""
ERROR = "class Bad(ValueError): pass\ndef f(x):\n    if x < 0: raise Bad('below')\n    return x"
KINDS = """
import collections, decimal, enum, fractions, datetime
P = collections.namedtuple("P", "x y")
class Color(enum.IntEnum): RED = 1
def p(): return P(1, 2)
def c(): return Color.RED
def n(): return collections.Counter("aab")
def d(): return collections.deque([1])
def m(): return decimal.Decimal("1.1")
def q(): return fractions.Fraction(1, 3)
def t(): return datetime.date(2020, 1, 1)
def g(k): yield from range(k)
def l(x): return lambda y: x + y
"""
GOOD = [
    ("def f(x): return 3.3", "assert abs(f(2) - 3.3) < 1e-3"),
    ("def f(x): return 3.3", "import math\nassert math.isclose(f(2), 3.3)"),
    ("import math\ndef f(x): return 3.3", "assert math.isclose(f(2), 3.3)"),
    (
        "def poly(xs, x): return xs[0] + xs[1] * x\ndef zero(xs): return -xs[0] / xs[1]",
        "import math, random, copy\ndef check(candidate):\n    rng = random.Random(42)\n    for _ in range(10):\n"
        "        coeffs = [rng.randint(1, 10), rng.randint(1, 10)]\n        x = candidate(copy.deepcopy(coeffs))\n"
        "        assert math.fabs(poly(coeffs, x)) < 1e-4\ncheck(zero)",
    ),
    ("def f(x): x.sort()", "a = [3, 1]\nf(a)\nassert a == [1, 3]"),
    ("def f(x): x['a'] = 1", "a = {}\nf(a)\nassert a == {'a': 1}"),
    (VECTOR, VECTORS),
    (
        ERROR,
        "try:\n    f(-1)\n    assert False\nexcept Bad as error:\n    assert str(error) == 'below'\n"
        "assert f(2) + 0 == 2",
    ),
    (ERROR, CASE + "    def test(self):\n        with self.assertRaisesRegex(Bad, 'bel'): f(-1)"),
    (ERROR, CASE + "    def test(self): self.assertRaises(ValueError, f, -1)"),
    (
        "def f(g, x): return g(x)",
        "import math\nassert f(lambda y: y + 1, 2) == 3\nassert f(len, [1]) == 1\nassert f(math.sqrt, 4) == 2\n"
        "assert f(str, 4) == '4'",
    ),
    (
        "def f(it): return sum(it)",
        "assert f(iter([1, 2])) + f(x for x in [1, 2]) + f(range(3)) + f(map(int, '12')) == 12",
    ),
    ("async def f(x): return x + 1", "import asyncio\nassert asyncio.run(f(2)) == 3"),
    ("async def f(x): return x + 1", "async def test_a():\n    assert await f(2) == 3"),
    (
        KINDS,
        "x = (1, 2)\nassert p() == x and [p()] == [x] and p().x == 1 and p()[1] + 0 == 2\nassert [p()] == [(1, 2)]",
    ),
    (KINDS, "assert c() == 1 and c() + 1 == 2 and c() is Color.RED\nassert c() == Color.RED"),
    (
        KINDS,
        "from collections import *\nassert n() == Counter('aab') and d() == deque([1])\n"
        "assert n().most_common(1) == [('a', 2)]",
    ),
    (
        KINDS,
        "import decimal, fractions\nassert m() == decimal.Decimal('1.1') and q() + q() == fractions.Fraction(2, 3)",
    ),
    (KINDS, "import datetime\nassert t() + datetime.timedelta(1) == datetime.date(2020, 1, 2)"),
    (KINDS, "assert list(g(3)) == [0, 1, 2]\nit = g(2)\nassert next(it) == 0\nassert l(2)(3) + 0 == 5"),
    (
        "import re\ndef f(s): return re.compile(s)",
        "assert f('a+').match('aa') is not None\nassert f('a').match('b') is None",
    ),
    ("def f(*a, **k): return (a, k)", "x = {'z': 3}\nassert f(1, **x)[1] == x"),
    (
        "def f(x): return [2 ** 200, float('nan'), 'ä', b'x', {1: {2}}, 1j]",
        "a = f(0)\nassert a[0] % 7 == 4 and a[1] != a[1]\nassert a[2:] == ['ä', b'x', {1: {2}}, 1j]",
    ),
    (
        "class Node:\n    def __init__(self, v, next=None): self.v, self.next = v, next\n"
        "def f(n):\n    return n.v + f(n.next) if n else 0",
        "n = Node(1, Node(2))\nassert f(n) == 3\nn.next.next = Node(4)\nassert f(n) == 7\n"
        "assert n.next.next.next is None",
    ),
]
WITHIN = [
    (
        "import random\ndef f(): return random.random()",
        "import random\nrandom.seed(0)\na = f()\nrandom.seed(0)\nassert f() == a",
    ),
    (
        "def f(x): print('hi', x)",
        "import io, contextlib\nb = io.StringIO()\nwith contextlib.redirect_stdout(b): f(1)\n"
        "assert b.getvalue() == 'hi 1\\n'",
    ),
    (
        "class Base:\n    def go(self): return self.val()",
        "class Sub(Base):\n    def val(self): return 3\nassert Sub().go() == 3",
    ),
]


def test_right_solutions_are_paid(confined):
    assert wrong(GOOD, 1.0) == []


def test_tests_that_need_the_solution_in_their_process():
    assert wrong(WITHIN, 1.0) == []


def test_right_arrays_are_paid():
    pytest.importorskip("numpy")
    code = "import numpy as np\ndef f(x): return np.array([1.0, 2]) / x\ndef g(a): a += 1\ndef s(a): return a.sum()"
    tests = [
        "(f(2) == np.array([0.5, 1])).all()",
        "np.allclose(f(3), [1 / 3, 2 / 3])",
        "f(2).shape == (2,)",
        "s(np.ones(3)) - 3 == 0",
    ]
    rows = [(code, f"import numpy as np\nassert {tests}") for tests in tests]
    rows += [(code, "import numpy as np\nnp.testing.assert_allclose(f(3), [1 / 3, 2 / 3])")]
    rows += [(code, "import numpy as np\na = np.zeros(2)\ng(a)\nassert a.sum() == 2")]
    assert wrong(rows, 1.0) == []


@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked for on Linux")
def test_endless_tests_end(confined, monkeypatch):
    mark = f"# apart-{os.getpid()}-{time.monotonic_ns()}"
    monkeypatch.setattr(runs, "START", f"{runs.START}{mark}")
    rows = [
        ("def f(x):\n    while True: pass", "assert f(1) + 0 == 2"),  # in the solution's process
        (RIGHT, "x = 0\nwhile f(x): x += 1\nassert x"),  # in both
        ("def f():\n    while True: yield 1", "assert sum(f()) == 2"),
        ("import time\ndef f(): time.sleep(60)", "while True: pass\nassert f()"),  # in the test's
    ]
    counts: dict[str, float] = {}
    texts = [f"```python\n{code}\n```" for code, _ in rows]
    start = time.monotonic()
    got = CodeTests(time_limit=1.0, workers=2)(texts, tests=[t for _, t in rows], log_count=counts.__setitem__)
    assert got == [0.0] * 4
    assert counts["timeouts"] == 4
    assert time.monotonic() - start < 30
    assert left_behind(mark) == []


def test_the_tests_process_is_out_of_reach():
    # Looks for the expected value in every process that it can see, and ends them.
    code = """
import os, re
def f(x):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            maps = open(f"/proc/{pid}/maps").read().splitlines() if int(pid) != os.getpid() else []
            with open(f"/proc/{pid}/mem", "rb", 0) as memory:
                for line in maps:
                    start, end = (int(part, 16) for part in line.split()[0].split("-"))
                    if line.split()[1][0] == "r" and end - start < 1 << 26 and end < 1 << 47:
                        memory.seek(start)
                        if found := re.search(rb"SECRET-\\d+", memory.read(end - start)): return found[0].decode()
        except OSError: pass
def g(x):
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try: os.kill(pid, 9) if pid not in (1, os.getpid()) else None
        except OSError: pass
    os._exit(0)"""
    if not runs.name_spaces_work():
        pytest.skip("no name spaces here")
    assert scores([(code, "x = 'SECRET-12'\nassert f(1) == x"), (code, "assert abs(g(1)) == 1")]) == [0.0, 0.0]
