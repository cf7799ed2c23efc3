"""One case, in the children that were forked for it: the solution, and the test once the solution is loaded.

A test may call ``__check__(number, value)``, or ``__check__(number, value, "==", other)``: the values are reported as
plain data and judged by the trainer. It is run in the solution's process, or in one of its own that has imported
nothing of the solution and calls it (see ``link``).
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import json
import operator
import os
import signal
import socket
import sys
import types
from collections.abc import Callable
from typing import Any

from grpo_lightning.rewards.code.confinement import restrict
from grpo_lightning.rewards.code.link import SolutionEnd
from grpo_lightning.rewards.code.remote import TestEnd, unwrapped
from grpo_lightning.rewards.code.values import reported

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


def _checks(answers: int, nonce: bytes) -> tuple[Callable[[bytes], None], Callable[..., None]]:
    """What writes a line of the report, and ``__check__``; they hold on to all that the solution could change."""
    operators = dict(_OPERATORS)
    write, encode, plain, dumps = os.write, reported, unwrapped, json.dumps

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
        value = (plain(value), plain(comparison[1])) if comparison else plain(value)
        report(dumps([number, truth, encode(value)]).encode())

    return report, check


def _run_solution(code: str, given: int, asks: int, answers: int, link: socket.socket) -> None:
    """Load the solution as a module, then get the test and run it, or answer the process that runs it.

    Every checked value is reported under a nonce, which comes with the test: what the solution may write before that
    counts for nothing.
    """
    wait, write, leave = os.read, os.write, os._exit
    kept = dict(vars(builtins))
    module = types.ModuleType("solution")
    sys.modules["solution"] = module
    end = SolutionEnd(link, module)
    serve = end.serve
    exec(compile(code, "solution.py", "exec", dont_inherit=True), module.__dict__)
    write(answers, b"loaded\n")
    sys.settrace(None)
    sys.setprofile(None)
    vars(builtins).update(kept)
    wait(asks, 1)
    with open(given, "rb") as file:
        message = json.loads(file.read())
    if message["apart"]:
        serve()
    link.close()
    report, check = _checks(answers, message["nonce"].encode())
    names = dict(module.__dict__, __check__=check, __builtins__=builtins)
    for name in kept.keys() - set(message["names"]) - {"__name__"}:  # abs() is Python's, unless it is what is tested
        names.pop(name, None)
    exec(compile(message["source"], "test.py", "exec", dont_inherit=True), names)
    report(b"done")
    leave(0)


def run_test_apart(job: dict[str, Any], folder: str, test: dict[str, Any], link: socket.socket, answers: int) -> None:
    """Run a test that calls the solution in the process at the other end; never returns."""
    try:
        _prepare(job, folder, (link.fileno(), answers), hidden=True)
        report, check = _checks(answers, test["nonce"].encode())
        names = {**TestEnd(link, test["classes"]).names(test["names"]), "__check__": check, "__name__": "test"}
        exec(compile(test["source"], "test.py", "exec", dont_inherit=True), names)
        report(b"done")
        os._exit(0)
    finally:
        os._exit(1)


def _prepare(
    job: dict[str, Any], folder: str, kept: tuple[int, ...], stdin: int = -1, stdout: int = -1, *, hidden: bool = False
) -> None:
    """Confine a forked child, with no other files open than these."""
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere if stdin < 0 else stdin, 0)
    os.dup2(nowhere if stdout < 0 else stdout, 1)
    os.dup2(nowhere, 2)
    for fd in range(3, 64):
        if fd not in kept:
            with contextlib.suppress(OSError):
                os.close(fd)
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        stream = open(fd, "w" if fd else "r", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    os.mkdir(folder)
    os.chdir(folder)
    os.environ.update(TMPDIR=folder)
    sys.argv, sys.path = ["solution.py"], [*sys.path, *job["path"]]
    restrict(job, hidden=hidden)


def run_child(
    job: dict[str, Any], folder: str, fds: tuple[int, int, int], link: socket.socket, *, program: bool
) -> None:
    """Everything that the child with the solution does; never returns."""
    given, _, answers = fds
    try:
        if program:
            _prepare(job, folder, (), given, answers)
            sys.path.insert(0, folder)
            _run_program(job["code"])
        else:
            _prepare(job, folder, (*fds, link.fileno()))
            sys.path.insert(0, folder)
            _run_solution(job["code"], *fds, link)
    finally:
        os._exit(1)
