"""Where the code is found, which rows have no score, and what is refused; the runs themselves are in integration."""

from __future__ import annotations

import inspect
import time

import pytest

from grpo_lightning.errors import UserError
from grpo_lightning.rewards import CodeTests
from grpo_lightning.rewards.code.reward import fenced_code
from grpo_lightning.rewards.scoring.calling import require


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\na\n```", "a\n"),
        ("First ```python\na\n``` then ```python\nb\n``` and ```text\nc\n```", "b\n"),
        ("```py\na\n```\n```\nb\n```", "a\n"),
        ("```\na\n```\n```cpp\nb\n```", "b\n"),
        ("<think>```python\na\n```</think> So ```python\nb\n```", "b\n"),
        ("<think>```python\na\n```</think> none", None),
        ("```python\na", None),
        ("a = 1", None),
        ("inline ```x``` and ```Python\na = 1```", "a = 1"),
        ("", None),
    ],
)
def test_the_code_of_an_answer(text, code):
    assert fenced_code(text) == code


def test_hostile_fences_take_no_time():
    start = time.monotonic()
    for text in ("```" * 100_000, "```\n" * 100_000, "``` a" * 100_000, "```python\n" + "x" * 1_000_000):
        fenced_code(text)
    assert time.monotonic() - start < 2


def test_nothing_runs_without_tests_or_code():
    reward = CodeTests()
    counted = {}
    scores = reward(
        ["no code", "```python\nx\n```", "none"], tests=["assert f()", None, []], log_count=counted.__setitem__
    )
    assert scores == [0.0, None, None]
    assert counted == {"timeouts": 0, "unreadable_tests": 0}
    assert reward([], tests=[]) == []


def test_the_column_is_asked_for_before_the_run():
    require("CodeTests", CodeTests(column="test_list"), ["completions", "test_list"])
    with pytest.raises(UserError, match="needs a column 'test_list'"):
        require("CodeTests", CodeTests(column="test_list"), ["completions", "tests"])
    assert "entry_point" in inspect.signature(CodeTests()).parameters


def test_rows_that_cannot_be_read_have_no_score(caplog):
    reward = CodeTests()
    counted = {}
    tests = ["assert f(", "assert f()", None, "assert f("]
    assert reward(["x"] * 4, tests=tests, log_count=counted.__setitem__) == [None, 0.0, None, None]
    assert counted == {"timeouts": 0, "unreadable_tests": 2}
    assert "SyntaxError" in caplog.text
    assert reward(["x", "x"], tests=[1, 2]) == [None, None]  # it has read others
    reward = CodeTests()
    assert reward(["x"], tests=["x = 1"], log_count=counted.__setitem__) == [None]
    assert counted["unreadable_tests"] == 1
    with pytest.raises(UserError, match=r"cannot read column 'tests' of any row; row 0: ValueError: int"):
        reward(["x", "x"], tests=[1, 2])


@pytest.mark.parametrize(
    "settings",
    [{"time_limit": 0}, {"total_limit": -1.0}, {"workers": 0}, {"memory_limit_gib": 0.01}, {"column": "my tests"}],
)
def test_bad_settings_are_refused(settings):
    with pytest.raises(UserError, match=next(iter(settings))):
        CodeTests(**settings)


def test_marks():
    assert (CodeTests.inline, CodeTests.best) == (True, 1.0)
