"""Every form of unit tests becomes cases, and outputs are compared by words."""

from __future__ import annotations

import json

import pytest

from grpo_lightning.rewards.code.cases import cases_of, same_json, same_output


def test_asserts_as_text_list_and_json():
    for tests in (["assert f(1) == 1", "assert f(2) == 2"], "assert f(1) == 1\nassert f(2) == 2"):
        assert [case.source for case in cases_of(tests)] == ["__check__(0, f(1))", "__check__(0, f(2))"]
    assert len(cases_of(json.dumps(["assert f(1) == 1", "assert f(2) == 2"]))) == 2
    assert len(cases_of("[f(1)]\nassert f(2) == 2")) == 1  # begins like JSON and is none


def test_programs_in_three_spellings():
    one = {"input": "1 2\n", "output": "3\n"}
    for tests in (
        [one, one],
        {"inputs": ["1 2\n"] * 2, "outputs": ["3\n"] * 2},
        {"inputs": [["1 2"]] * 2, "outputs": [["3"]] * 2},
    ):
        cases = cases_of(tests)
        assert [(case.stdin or "").strip() for case in cases] == ["1 2", "1 2"]
        assert [case.holds(b"3") for case in cases] == [True, True]
        assert [case.holds(b"4") for case in cases] == [False, False]


def test_calls():
    cases = cases_of({"fn_name": "add", "inputs": [[1, 2], ["a", "b"]], "outputs": [3, ["ab"]]})
    assert [case.source for case in cases] == [
        "__check__(0, (globals().get('add') or Solution().add)(*[1, 2]))",
        "__check__(0, (globals().get('add') or Solution().add)(*['a', 'b']))",
    ]
    assert cases[0].holds(b"[0, true, 3]\ndone")
    assert not cases[0].holds(b"[0, true, 4]\ndone")
    assert cases[1].holds(b'[0, true, "ab"]\ndone')  # APPS has some results in a list
    assert cases[1].holds(b'[0, true, ["tuple", ["ab"]]]\ndone')


def test_calls_with_json_lines():
    (case,) = cases_of([{"func_name": "f", "input": '"a\u2028b"', "output": "1"}])
    assert case.source.endswith("(*['a\\u2028b']))")  # not the end of a line of JSON
    (case,) = cases_of([{"func_name": "f", "input": "[1, 2]\n\n3", "output": "[4.0]"}])
    assert case.source.endswith("(*[[1, 2], 3]))")
    assert case.holds(b'[0, true, ["list", [4.0000001]]]\ndone')


@pytest.mark.parametrize("tests", [None, "", [], {}, "[]"])
def test_no_tests(tests):
    assert cases_of(tests) == []


@pytest.mark.parametrize(
    "tests",
    [3, [1], ["assert f(1) ="], [{"input": "1"}], {"inputs": [1], "outputs": []}, {"a": 1}, "def f(:", ["x", {}]],
)
def test_unreadable_tests(tests):
    with pytest.raises((ValueError, SyntaxError)):
        cases_of(tests)


@pytest.mark.parametrize("name", ["a b", "f(", "__import__('os')"])
def test_a_function_must_have_a_name(name):
    with pytest.raises(ValueError, match="no name"):
        cases_of({"fn_name": name, "inputs": [[]], "outputs": [1]})


@pytest.mark.parametrize(
    ("got", "expected", "same"),
    [
        ("3\n", "3", True),
        ("  1   2 \n3\n\n", "1 2\n3", True),
        ("1\n2", "1 2", False),
        ("1", "1\n2", False),  # stops early
        ("1\n2", "1", False),
        ("", "1", False),
        ("", "", True),
        ("0.5000001", "0.5", True),
        ("0.501", "0.5", False),
        ("1000000.4", "1000000.0", True),
        ("3.0", "3", False),
        ("3", "3.0", True),
        ("nan", "1.0", False),
        ("yes", "YES", False),
    ],
)
def test_outputs(got, expected, same):
    assert same_output(got.encode(), expected) is same


@pytest.mark.parametrize(
    ("value", "expected", "same"),
    [
        ((1, 2), [1, 2], True),
        ([1, 2], [2, 1], False),
        ({1: "a"}, {"1": "a"}, True),
        ({1: "a"}, {"1": "b"}, False),
        (0.3000000001, 0.3, True),
        (0.31, 0.3, False),
        (2.0, 2, True),
        ("2", 2, False),
        (None, None, True),
        ([], None, False),
        ("ab", ["a", "b"], False),
    ],
)
def test_results(value, expected, same):
    assert same_json(value, expected) is same
