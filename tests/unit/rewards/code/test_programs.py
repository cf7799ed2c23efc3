"""Test programs are cut into tests, and expected constants do not go to the child."""

from __future__ import annotations

import json

import pytest

from grpo_lightning.rewards.code.programs import Opaque, cut, decoded


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
        "import math\n__check__(0, f(1))",
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
        "candidate = f\ndata = [1]\n__check__(0, candidate([]))",
    ]


def test_a_check_function_that_returns_is_one_test():
    text = "def check(candidate):\n    for i in range(3):\n        assert candidate(i) == i\n    return\n"
    (test,) = cut(text, "f")
    assert test.source.endswith("check(f)")
    assert test.required == frozenset()
    assert test.holds(report([0, False, ["tuple", [0, 0]]], [0, False, ["tuple", [1, 1]]]))
    assert not test.holds(report([0, True, ["tuple", [0, 1]]]))


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


def test_a_program_without_asserts_is_one_test():
    (test,) = cut("x = f(1)\nif x != 1:\n    raise ValueError", None)
    assert test.holds(b"done")
    assert not test.holds(b"")


def test_asserts_inside_try_stay():
    (test,) = cut("try:\n    assert f(1) == 2\nexcept AssertionError:\n    pass", None)
    assert "assert f(1) == 2" in test.source


def test_what_is_no_plain_data_equals_nothing():
    assert decoded(["other", "ANY"]) != decoded(["other", "ANY"])
    assert Opaque() != 1
