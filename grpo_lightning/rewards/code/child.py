"""One case, in the child that was forked for it: the solution, and the test once the solution is loaded.

A test may call ``__check__(number, value)``, or ``__check__(number, value, "==", other)``: the values are reported as
plain data and judged by the trainer.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import json
import operator
import os
import signal
import sys
import types
from collections.abc import Callable
from typing import Any

from grpo_lightning.rewards.code.confinement import restrict

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda value, container: value in container,
    "not in": lambda value, container: value not in container,
}


def _encoded(value: Any) -> Any:
    """A value as JSON that keeps Python's types; what is no plain data keeps its type's name only."""
    if type(value).__module__ == "numpy" and hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if -(10**18) < value < 10**18 else ["int", hex(value)]
    for kind in (float, str):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, complex):
        return ["complex", value.real, value.imag]
    if isinstance(value, bytes | bytearray):
        return ["bytes", value.hex()]
    if isinstance(value, dict):
        return ["dict", [[_encoded(key), _encoded(entry)] for key, entry in value.items()]]
    for name, sequence in (("list", list), ("tuple", tuple), ("set", (set, frozenset, type({}.keys())))):
        if isinstance(value, sequence):
            return [name, [_encoded(entry) for entry in value]]
    if type(value).__module__ in ("fractions", "decimal") and hasattr(value, "as_integer_ratio"):
        return ["ratio", *(hex(part) for part in value.as_integer_ratio())]
    return ["other", type(value).__name__]


def _run_program(code: str) -> None:
    """The solution as a script, to its ordinary end: threads waited for, exit functions called, output flushed."""
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    status = 0
    try:
        exec(compile(code, "solution.py", "exec", dont_inherit=True), module.__dict__)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    if (threading := sys.modules.get("threading")) is not None:
        threading._shutdown()
    atexit._run_exitfuncs()
    builtins.print(end="", flush=True)
    os._exit(status & 0xFF)


def _run_test(code: str, given: int, asks: int, answers: int) -> None:
    """Load the solution as a module, then get the test and run it; every checked value is reported under a nonce.

    The nonce comes with the test, so what the solution may write before that counts for nothing.
    """
    operators = dict(_OPERATORS)
    wait, write, leave, encode, dumps = os.read, os.write, os._exit, _encoded, json.dumps
    kept = dict(vars(builtins))
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    exec(compile(code, "solution.py", "exec", dont_inherit=True), module.__dict__)
    write(answers, b"loaded\n")
    sys.settrace(None)
    sys.setprofile(None)
    vars(builtins).update(kept)
    wait(asks, 1)
    with open(given, "rb") as file:
        nonce, _, source = file.read().partition(b"\n")

    def report(line: bytes) -> None:
        line = nonce + line + b"\n"
        while line:
            line = line[write(answers, line) :]

    def check(number: int, value: Any, *comparison: Any) -> None:
        try:
            outcome = operators[comparison[0]](value, comparison[1]) if comparison else value
            truth: Any = True if outcome else False  # noqa: SIM210 (bool could be the solution's own)
        except Exception as error:
            truth = ["other", type(error).__name__]
        report(dumps([number, truth, encode((value, comparison[1]) if comparison else value)]).encode())

    exec(compile(source, "test.py", "exec", dont_inherit=True), dict(module.__dict__, __check__=check))
    report(b"done")
    leave(0)


def run_child(job: dict[str, Any], folder: str, fds: tuple[int, int, int], *, program: bool) -> None:
    """Everything that a forked child does; never returns."""
    given, _, answers = fds
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(given if program else nowhere, 0)
        os.dup2(answers if program else nowhere, 1)
        os.dup2(nowhere, 2)
        for fd in range(3, 64):
            if program or fd not in fds:
                with contextlib.suppress(OSError):
                    os.close(fd)
        for fd, name in enumerate(("stdin", "stdout", "stderr")):
            stream = open(fd, "w" if fd else "r", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
        os.mkdir(folder)
        os.chdir(folder)
        os.environ.update(TMPDIR=folder)
        sys.argv, sys.path = ["solution.py"], [folder, *sys.path, *job["path"]]
        restrict(job)
        _run_program(job["code"]) if program else _run_test(job["code"], *fds)
    finally:
        os._exit(1)
