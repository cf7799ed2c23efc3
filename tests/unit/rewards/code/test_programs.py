"""Test programs are cut into tests, and expected constants do not go to the child."""

from __future__ import annotations

import json

import pytest

from grpo_lightning.rewards.code.checks import Opaque, decoded
from grpo_lightning.rewards.code.programs import cut


def report(*lines, end="done"):
    return b"\n".join([json.dumps(list(line)).encode() for line in lines] + [end.encode()])


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("assert f(2) == 3", "__check__(0, f(2))"),
        ("assert 3 == f(2), 'wrong'", "__check__(0, f(2))"),
        ("assert f(2) in (3, 4)", "__check__(0, f(2))"),
        ("assert f([1, 2]) == [(1, 'a'), {2: {3}}, -1.5, None]", "__check__(0, f([1, 2]))"),
        ("assert f(1) is True", "__check__(0, f(1))"),
        ("assert abs(f(2) - 3.5) < 1e-06", "__check__(0, abs(f(2) - 3.5))"),
        ("assert f(2)", "__check__(0, f(2))"),
        ("assert not f(2)", "__check__(0, f(2))"),
        ("assert f(1) == g(1)", "__check__(0, f(1), '==', g(1))"),
        ("assert f(1) == 1 and f(2)", "__check__(0, f(1))\n__check__(1, f(2))"),
        ("assert 1 < f(1) < 3", "__check__(0, 1 < f(1) < 3)"),
    ],
)
def test_asserts_become_reports(text, source):
    (test,) = cut(text, None)
    assert test.source == source
    assert test.required == frozenset(range(len(test.checks)))


@pytest.mark.parametrize(
    ("text", "good", "bad"),
    [
        ("assert f() == 3", [3, 3.0], [4, "3", None, ["list", [3]], ["other", "ANY"]]),
        ("assert f() == (1, [2])", [["tuple", [1, ["list", [2]]]]], [["list", [1, ["list", [2]]]]]),
        ("assert f() == {'a': {1, 2}}", [["dict", [["a", ["set", [2, 1]]]]]], [["dict", []]]),
        ("assert f() != 3", [4, "3"], [3]),
        ("assert f() in [1, 2]", [1, 2], [3, ["other", "ANY"]]),
        ("assert f() < 0.5", [0.4], [0.5, "a", ["other", "X"]]),
        ("assert f() is True", [True], [1, False, "True"]),
        ("assert f() is not None", [1, False], [None]),
        ("assert f() == 1000000000000000000000", [["int", hex(10**21)]], [["int", hex(10**21 + 1)]]),
        ("assert f() == 0.5", [["ratio", "0x1", "0x2"]], [["ratio", "0x1", "0x3"], ["ratio", "0x1", "0x0"]]),
        ("assert f() == b'a'", [["bytes", "61"]], ["a"]),
        ("assert f() == 1j", [["complex", 0.0, 1.0]], [["complex", 1.0, 0.0]]),
    ],
)
def test_reported_values_are_judged_here(text, good, bad):
    (test,) = cut(text, None)
    assert [test.holds(report([0, False, value])) for value in good] == [True] * len(good)
    assert [test.holds(report([0, True, value])) for value in bad] == [False] * len(bad)


def test_truth_is_taken_from_the_child():
    (plain,) = cut("assert f()", None)
    (negated,) = cut("assert not f()", None)
    assert [plain.holds(report([0, truth, 0])) for truth in (True, False, 1, ["other", "E"])] == [True, False] + [
        False
    ] * 2
    assert [negated.holds(report([0, truth, 0])) for truth in (True, False, 0)] == [False, True, False]


def test_a_report_must_be_whole():
    (test,) = cut("assert f(1) == 1 and f(2) == 2", None)
    assert test.holds(report([0, True, 1], [1, True, 2]))
    assert not test.holds(report([0, True, 1], [1, True, 2], end="don"))
    assert not test.holds(report([0, True, 1]))  # the second was never reached
    assert not test.holds(report([0, True, 1], [1, True, 2], [1, True, 3]))
    assert not test.holds(report([0, True, 1], [2, True, 2]))
    for garbage in (
        b"",
        b"done",
        b"{}\ndone",
        b"[[[\ndone",
        b"1\ndone",
        b"[" * 100_000 + b"\ndone",
        b'[0,1,["int"]]\ndone',
    ):
        assert not test.holds(garbage)


def test_each_top_level_assert_is_a_test_with_the_setup_before_it():
    tests = cut("import math\nassert f(1) == 1\nx = 2\nassert f(x) == math.inf", None)
    assert [test.source for test in tests] == [
        "__check__(0, f(1))",  # for which nothing else is needed
        "import math\nx = 2\n__check__(0, f(x), '==', math.inf)",
    ]


def test_asserts_that_share_a_variable_are_run_in_order():
    tests = cut("s = Stack()\nassert s.pop() == 0\nassert f(1) == 1\nassert s.pop() == 2", None)
    assert [test.source for test in tests] == [
        "s = Stack()\n__check__(0, s.pop())",
        "s = Stack()\n__check__(0, f(1))",
        "s = Stack()\ns.pop() == 0\n__check__(0, s.pop())",
    ]


CHECK = "def check(candidate):\n    data = [1]\n    assert candidate(data) == 1\n    assert candidate([]) == 0\n"


@pytest.mark.parametrize(("text", "entry"), [(CHECK, "f"), (CHECK + "check(f)", None), (CHECK + "check(f)", "f")])
def test_the_check_function_is_unfolded(text, entry):
    assert [test.source for test in cut(text, entry)] == [
        "candidate = f\ndata = [1]\n__check__(0, candidate(data))",
        "candidate = f\n__check__(0, candidate([]))",
    ]


def test_a_check_function_that_returns_is_one_test():
    text = "def check(candidate):\n    for i in range(3):\n        assert candidate(i) == i\n    return\n"
    (test,) = cut(text, "f")
    assert test.source.endswith("check(f)")
    assert test.required == frozenset()
    assert test.holds(report([0, True, ["tuple", [0, 0]]], [0, True, ["tuple", [1, 1]]]))
    assert not test.holds(report([0, True, ["tuple", [0, 0]]], [0, False, ["tuple", [1, 0]]]))
    assert not test.holds(b"done")  # no round of the loop


def test_two_values_are_compared_here_unless_both_are_objects():
    (test,) = cut("assert f(1) == g(1)", None)
    thing = ["other", "Thing"]
    pairs = [
        (True, 1, 2),
        (False, 1, 1),
        (True, thing, 1),
        (True, ["list", [thing]], ["list", [1]]),
        (True, thing, thing),
    ]
    verdicts = [test.holds(report([0, truth, ["tuple", [one, two]]])) for truth, one, two in pairs]
    assert verdicts == [False, True, False, False, True]


def test_test_functions_are_tests():
    tests = cut(
        "from solution import f\ndef test_one():\n    assert f(1) == 1\ndef test_two():\n    assert f(2) == 2", None
    )
    assert [test.source.splitlines()[-1] for test in tests] == ["test_one()", "test_two()"]


PASSED = "__check__(0, True)"


@pytest.mark.parametrize(
    "text",
    [
        "x = f(1)\nif x != 1:\n    raise ValueError",
        "try:\n    f(-1)\n    assert False\nexcept ValueError:\n    pass",
        "try:\n    f(-1)\n    raise SystemExit\nexcept ValueError:\n    pass",
        "import pytest\nwith pytest.raises(ValueError):\n    f(-1)",
        "import numpy as np\nnp.testing.assert_allclose(f(1), 2)",
    ],
)
def test_other_statements_report_that_they_were_passed(text):
    (test,) = cut(text, None)
    assert test.source == f"{text}\n{PASSED}"
    assert test.holds(report([0, True, True]))
    assert not test.holds(b"done")


NOTHING_RUNS = {
    "check without a name": (CHECK, None),
    "check of two": ("def check(candidate, other):\n    assert candidate(2) == 3", "f"),
    "decorated": ("@deco\ndef test_a(x=2):\n    assert f(x) == 3", None),
    "fixture": ("def test_a(tmp_path):\n    assert f(2) == 3", None),
    "fixtures in a class": ("class TestF:\n    def test_a(self, tmp_path):\n        assert f(2) == 3", None),
    "uncalled": ("def run():\n    assert f(2) == 3", None),
    "uncalled in a class": ("class Case:\n    def test_a(self):\n        assert f(2) == 3", None),
    "nothing": ("x = 1", None),
    "comment": ("# no tests", None),
    "call only": ("f(2)", None),
    "try without a check": ("try:\n    f(2)\nexcept ValueError:\n    pass", None),
    "nothing of the solution": ("x = 1\nassert x == 1", None),
}


@pytest.mark.parametrize("name", NOTHING_RUNS)
def test_a_program_that_would_check_nothing_is_refused(name):
    with pytest.raises(ValueError, match=r"no assert|use nothing"):
        cut(*NOTHING_RUNS[name])


def test_what_stands_under_main_is_run():
    tests = cut("def run():\n    assert f(2) == 3\nif __name__ == '__main__':\n    assert f(1) == 2\n    run()", None)
    assert [test.source.splitlines()[-1] for test in tests] == ["__check__(1, f(1))"]
    (test,) = cut("def run():\n    assert f(2) == 3\nif __name__ == '__main__':\n    run()", None)
    assert test.source == "def run():\n    __check__(0, f(2))\nrun()"


def test_classes_of_tests():
    methods = "    def setup_method(self): ...\n    def test_a(self):\n        assert f(2) == 3\n"
    (test,) = cut(f"class TestF:\n{methods}", None)
    assert test.source.splitlines()[-3:] == ["__test__ = TestF()", "__test__.setup_method()", "__test__.test_a()"]
    text = f"import unittest\nclass Any(unittest.TestCase):\n{methods}if __name__ == '__main__':\n    unittest.main()"
    (test,) = cut(text, None)
    assert test.source.splitlines()[-1] == "__import__('unittest').TestSuite([Any('test_a')]).debug()"
    text = "class TestF:\n    def setup_method(self, method): ...\n    def test_a(self): assert f(2) == 3"
    assert "__test__.setup_method(None)" in cut(text, None)[0].source
    (test,) = cut("async def test_a():\n    assert await f(2) == 3", None)
    assert test.source.splitlines()[-1] == "__import__('asyncio').run(test_a())"


def test_what_is_no_plain_data_equals_nothing():
    assert decoded(["other", "ANY"]) != decoded(["other", "ANY"])
    assert Opaque() != 1


def test_parametrized_functions():
    head = "import pytest\n@pytest.mark.parametrize({})\ndef test_a({}):\n    assert f(a) == b\n"
    text = head.format("'a, b', [(1, 2), ([3], g(4))]", "a, b") + "@pytest.mark.timeout(3)\ndef test_b(): assert f(1)"
    calls = [test.source.splitlines()[-1] for test in cut(text, None)]
    assert calls == ["test_a(**{'a': 1, 'b': 2})", "test_a(**{'a': [3], 'b': g(4)})", "test_b()"]
    (test,) = cut(head.format("('a',), [5]", "a, b=6"), None)
    assert test.source.splitlines()[-1] == "test_a(**{'a': 5})"
    for unknown in ("'a', [5]", "names, [(1, 2)]", "'a, b', sets", "'a, b', [pytest.param(1, 2)]"):
        with pytest.raises(ValueError, match="no assert"):
            cut(head.format(unknown, "a, b"), None)
