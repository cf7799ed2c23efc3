"""Unit tests as data sets have them, made into cases; expected outputs and values stay in the trainer's process."""

from __future__ import annotations

import contextlib
import functools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_lightning.rewards.code.checks import Check, TestProgram
from grpo_lightning.rewards.code.programs import cut

RELATIVE_TOLERANCE = 1e-6
"""Of numbers with a decimal point in printed outputs and in JSON values."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run of a solution."""

    stdin: str | None = None
    """What the solution reads if it is run as a program; None if ``source`` is run with it."""
    source: str = ""
    """The test that is run after the solution has been loaded."""
    apart: bool = False
    """In a process of its own, where names that it does not know are the solution's."""
    names: frozenset[str] = frozenset()
    """What it is given of the solution; within the solution's process, Python's own names that are meant so."""
    classes: frozenset[str] = frozenset()
    """Of these, classes under test."""
    holds: Callable[[bytes], bool]
    """Whether what was printed or reported is right."""

    def message(self) -> dict[str, Any]:
        """What the child that runs ``source`` is told."""
        given = {"names": sorted(self.names), "classes": sorted(self.classes)}
        return {"source": self.source, "apart": self.apart, **given}


def cases_of(tests: Any, entry_point: str | None = None) -> list[Case]:
    """The cases of one row; none if it has no tests.

    Args:
        tests: in one of the forms that ``CodeTests`` names.
        entry_point: the function that HumanEval's ``check`` is called with.

    Raises:
        ValueError: if it is none of these forms; a ``SyntaxError`` where a test program is no Python.
    """
    if isinstance(tests, str) and tests.lstrip()[:1] in ("[", "{"):
        with contextlib.suppress(ValueError):  # a program may begin like that too
            tests = json.loads(tests)
    if not tests:
        return []
    if isinstance(tests, str):
        return [_program_case(test) for test in cut(tests, entry_point)]
    if isinstance(tests, dict):
        return _cases_of_dict(tests)
    if isinstance(tests, Sequence) and all(isinstance(test, str) for test in tests):
        return cases_of("\n".join(tests), entry_point)
    if isinstance(tests, Sequence) and all(isinstance(test, dict) for test in tests):
        return [case for test in tests for case in _cases_of_dict(test)]
    raise ValueError(f"{type(tests).__name__} instead of text, a list of texts, a list of dicts or a dict")


def _program_case(test: TestProgram) -> Case:
    return Case(source=test.source, holds=test.holds, apart=test.apart, names=test.names, classes=test.classes)


def _cases_of_dict(tests: dict[str, Any]) -> list[Case]:
    """Of ``{"input", "output"}`` or ``{"inputs", "outputs"}``, with ``fn_name`` for calls."""
    name = tests.get("fn_name") or tests.get("func_name")
    if "input" in tests and "output" in tests:
        inputs, outputs = [tests["input"]], [tests["output"]]
    elif isinstance(tests.get("inputs"), list) and isinstance(tests.get("outputs"), list):
        inputs, outputs = tests["inputs"], tests["outputs"]
    else:
        raise ValueError(f"a dict with {', '.join(map(repr, tests)) or 'nothing'} instead of inputs and outputs")
    if len(inputs) != len(outputs):
        raise ValueError(f"{len(inputs)} inputs and {len(outputs)} outputs")
    pairs = zip(inputs, outputs, strict=True)
    if name:
        return [_call_case(str(name), given, expected) for given, expected in pairs]
    return [
        Case(stdin=_text(given), holds=functools.partial(same_output, expected=_text(expected)))
        for given, expected in pairs
    ]


def _text(value: Any) -> str:
    """Text of an input or output; some data sets have its lines in a list."""
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def same_output(written: bytes, expected: str) -> bool:
    """The same words in the same lines; white space at the ends of lines and blank lines at the ends of text are free.

    Where the expected word is a number with a decimal point, any number within 1e-6 of it (relative above 1) will do.
    """
    got = written.decode("utf-8", "replace").strip().splitlines()
    lines = expected.strip().splitlines()
    return len(got) == len(lines) and all(map(_same_words, got, lines))


def _same_words(got: str, expected: str) -> bool:
    words, wanted = got.split(), expected.split()
    return len(words) == len(wanted) and all(map(_same_word, words, wanted))


def _same_word(got: str, expected: str) -> bool:
    if got == expected:
        return True
    if "." not in expected or len(got) > 100:
        return False
    try:
        return math.isclose(float(got), float(expected), rel_tol=RELATIVE_TOLERANCE, abs_tol=RELATIVE_TOLERANCE)
    except ValueError:
        return False


def _call_case(name: str, given: Any, expected: Any) -> Case:
    """A call with one list of arguments; in text, one argument as JSON on each line."""
    if not name.isidentifier():
        raise ValueError(f"fn_name {name!r} is no name of a function")
    if isinstance(given, str):
        given = [json.loads(line) for line in given.split("\n") if line.strip()]
        expected = json.loads(expected) if isinstance(expected, str) else expected
    if not isinstance(given, list):
        raise ValueError(f"inputs of {name} are {type(given).__name__}, not lists of arguments")
    call = f"(globals().get({name!r}) or Solution().{name})"
    check = Check(holds=functools.partial(_is_result, expected=expected))
    source = f"__check__(0, {call}(*{given!r}))"
    test = TestProgram(source=source, checks=[check], required=frozenset({0}), names=frozenset({name}))
    return _program_case(test)


def _is_result(value: Any, expected: Any) -> bool:
    """Equal as JSON; APPS has some results in a list of their own."""
    return same_json(value, expected) or (
        isinstance(expected, list) and len(expected) == 1 and same_json(value, expected[0])
    )


def same_json(value: Any, expected: Any) -> bool:
    """Equal as JSON: tuples are lists, keys are text, and numbers of which one has a fraction agree to 1e-6."""
    if isinstance(expected, list | tuple):
        return isinstance(value, list | tuple) and len(value) == len(expected) and all(map(same_json, value, expected))
    if isinstance(expected, dict):
        keyed = {str(key): entry for key, entry in value.items()} if isinstance(value, dict) else {}
        wanted = {str(key): entry for key, entry in expected.items()}
        return (
            isinstance(value, dict)
            and keyed.keys() == wanted.keys()
            and all(same_json(keyed[key], entry) for key, entry in wanted.items())
        )
    if isinstance(expected, float) or (isinstance(value, float) and isinstance(expected, int)):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and math.isclose(value, expected, rel_tol=RELATIVE_TOLERANCE, abs_tol=RELATIVE_TOLERANCE)
    return bool(value == expected)
