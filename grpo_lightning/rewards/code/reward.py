"""Does the code in a completion pass its unit tests?"""

from __future__ import annotations

import inspect
import logging
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

from grpo_lightning.errors import UserError
from grpo_lightning.rewards.code.cases import Case, cases_of
from grpo_lightning.rewards.code.runs import Limits, Sandboxes
from grpo_lightning.rewards.completions import completion_text

log = logging.getLogger(__name__)

_BLOCK = re.compile(r"```[ \t]*([^\n`]*)\n(.*?)```", re.DOTALL)
_PYTHON = ("python", "python3", "py")


def fenced_code(text: str) -> str | None:
    """The code of an answer: its last block fenced as Python, else its last fenced block; None if it has none.

    What stands before the last ``</think>`` is thought, not answer. A block that is not closed was cut off.
    """
    blocks = [(match[1].strip().lower(), match[2]) for match in _BLOCK.finditer(text.rpartition("</think>")[2])]
    python = [code for language, code in blocks if language in _PYTHON]
    return (python or [code for _, code in blocks] or [None])[-1]


class CodeTests:
    """The share of a row's unit tests that the completion's Python code passes, 0.0 to 1.0, or all of them or nothing.

    Without ``all_or_nothing`` it is open-r1's ``code_reward`` and the score of verl's ``prime_code`` (APPS, TACO,
    codecontests) that pays for parts; with it, 1.0 if every test passes and else 0.0: open-r1's ``binary_code_reward``
    (which pays from a share of 0.99 on) and ``prime_code`` as it is used by default. Unlike open-r1's, an output that
    stops early is wrong. The code is the last ```` ```python ```` block after ``</think>``, else the last fenced block;
    without one, 0.0. A row without tests scores None; so does one whose tests cannot be read, which is counted and
    logged.

    The tests stand in one data column, in one of these forms or as JSON text of it:

    - asserts or a test program, as text or a list of texts (MBPP's ``test_list``, HumanEval's ``test`` with a column
      ``entry_point``). A test is: an assert at the top level, under ``if __name__ == "__main__"``, or at the top level
      of ``check(candidate)``, which does not see the side effects of the others; a function ``test_...``; a method
      ``test...`` of a ``unittest.TestCase`` or of a plain class ``Test...``. What wants fixtures, or is decorated other
      than by ``pytest.mark.parametrize`` with its values written out, is not run. A program with none of these is one
      test. ``from solution import f`` works; pytest and NumPy must be installed where tests import them. A program of
      which no check would be run (HumanEval's without ``entry_point``), or that uses nothing of the solution, cannot be
      read; a run that has reached no check is not paid.
    - programs: ``[{"input": "1 2\\n", "output": "3\\n"}, ...]``. The code is run as a script that reads the input; it
      must print the output (words are compared; decimal fractions to 1e-6) and end well.
    - calls: ``{"fn_name": "add", "inputs": [[1, 2], ...], "outputs": [3, ...]}``, of a function or of a method of
      ``class Solution``. ``{"inputs", "outputs"}`` without ``fn_name`` are programs (APPS, TACO, codecontests).

    Every test is run in a new process, whose limits are: ``time_limit``, ``memory_limit_gib`` for each process, 32
    processes, 64 MiB of files, 8 MiB of output, 64 open files. Its environment is empty but for a path, and it starts
    in an empty folder that is removed. Everything that it started is killed at its end. On Linux, where unprivileged
    user name spaces are allowed (Docker's defaults forbid them), it also has no network, sees no other processes and
    writes nowhere but in that folder (before Linux 5.12, the last does not hold). Without them, a filter of system
    calls cuts the network (on x86-64 and arm64). The log says once what holds.

    What tests see of the solution: an assert that compares calls with constants is compared in the trainer, with what
    the calls returned as plain data. A test that computes with results is run in a process of its own, which has
    imported nothing of the solution and calls it in the first process. Plain data (numbers, text, containers, dates,
    fractions, NumPy's arrays) come back as such; other objects stay where they are, and no operator between one and a
    value of the test's is left to its class, unless the test uses the class itself (``Vector(1, 2) * 3 == Vector(3,
    6)``). Builtins and modules are the test's own; only names that it neither defines nor imports are the solution's,
    and a builtin only if it is what is tested (``assert sum(1, 2) == 3``). Arguments changed in place are seen.

    Not paid, therefore: leaving early, printing "passed", changed builtins and modules (``math.isclose``,
    ``numpy.allclose``), objects that are equal or near to everything, reading the expected values. Less holds where a
    test needs the solution in its own process: it defines classes of its own, seeds a random generator, changes an
    object's attribute in place (``s.items.append(3)``), asks for an object's class, uses ``open``, ``eval``, ``exec``,
    ``compile``, ``input``, ``globals``, ``locals``, ``vars`` or a decorator of the solution's, or uses modules such as
    ``io``, ``sys`` and ``unittest.mock`` or others outside ``link.KNOWN_MODULES``. Its builtins are still Python's and
    its asserts are reported as above, but there modules can be changed, operators feigned, and values that are no
    constants found. Where a test compares two objects of the solution's, their class decides.

    This is a guard against accidents and the tricks that training finds, not against an attacker: the code may read
    what the trainer's user may read, and use the GPU's devices and sockets in the file system. Without name spaces it
    can also write files, read the environment and end the processes of that user, the trainer's too.

    Args:
        all_or_nothing: 1.0 for all tests passed and else 0.0; the first that fails ends the run.
        column: the data column with the tests.
        time_limit: wall-clock seconds of one test, loading the code included. A test that exceeds it fails.
        total_limit: wall-clock seconds of all tests of one completion; those that are left fail.
        memory_limit_gib: GiB of address space of one process.
        workers: completions run at the same time on this rank; by default its share of the cores.
    """

    inline = True
    best = 1.0
    __name__ = "code_tests"

    def __init__(
        self,
        *,
        all_or_nothing: bool = False,
        column: str = "tests",
        time_limit: float = 5.0,
        total_limit: float = 20.0,
        memory_limit_gib: float = 1.0,
        workers: int | None = None,
    ) -> None:
        for name, value in {"time_limit": time_limit, "total_limit": total_limit, "workers": workers}.items():
            if value is not None and not value > 0:
                raise UserError(f"CodeTests: {name} is {value}; it must be above 0")
        if memory_limit_gib < 0.1:
            raise UserError(f"CodeTests: memory_limit_gib is {memory_limit_gib}; Python itself needs 0.1")
        if not column.isidentifier():
            raise UserError(f"CodeTests: column {column!r} is no name of a data column")
        if not hasattr(os, "fork"):
            raise UserError("CodeTests runs on Linux and macOS only: this system cannot fork")
        self.all_or_nothing = all_or_nothing
        self.column = column
        limits = Limits(
            case_seconds=time_limit, total_seconds=total_limit, memory_bytes=round(memory_limit_gib * (1 << 30))
        )
        self._sandboxes = Sandboxes(workers=workers or _share_of_cores(), limits=limits)
        self._warned = False
        self._read_any = False
        # So that data without the column are refused before the first rollout, whatever the column's name.
        own = inspect.signature(type(self).__call__).parameters.values()
        needed = inspect.Parameter(column, inspect.Parameter.KEYWORD_ONLY)
        _, completions, *others, columns = own
        self.__signature__ = inspect.Signature([completions, needed, *others, columns])

    def __call__(
        self,
        completions: Sequence[Any],
        *,
        entry_point: Sequence[str | None] | None = None,
        log_count: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """The scores.

        Args:
            completions: texts or chat messages.
            entry_point: HumanEval's column.
            log_count: given ``timeouts``: completions of which a test was too slow, or was not run for lack of time;
                and ``unreadable_tests``: completions of rows whose tests are in none of the forms, or check nothing.
            columns: the data columns.
        """
        entries = entry_point or [None] * len(completions)
        cases, unreadable = self._cases(columns[self.column], entries)
        codes = [fenced_code(completion_text(completion)) for completion in completions]
        scores: list[float | None] = [0.0 if row else None for row in cases]
        jobs = [index for index, (code, row) in enumerate(zip(codes, cases, strict=True)) if row and code is not None]
        runs = self._sandboxes.run(
            [(codes[index] or "", cases[index] or []) for index in jobs], until_failure=self.all_or_nothing
        )
        for index, run in zip(jobs, runs, strict=True):
            share = run.passed / len(cases[index] or [])
            scores[index] = float(share == 1.0) if self.all_or_nothing else share
        if log_count is not None:
            log_count("timeouts", sum(run.late > 0 for run in runs))
            log_count("unreadable_tests", unreadable)
        return scores

    def _cases(self, tests: Sequence[Any], entries: Sequence[str | None]) -> tuple[list[list[Case] | None], int]:
        """The cases of each row, and how many rows could not be read."""
        known: dict[tuple[int, str | None], list[Case]] = {}  # the completions of one prompt share the object
        faults: dict[int, str] = {}
        for row, (one, entry) in enumerate(zip(tests, entries, strict=True)):
            if (id(one), entry) in known:
                continue
            try:
                known[id(one), entry] = cases_of(one, entry)
            except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
                known[id(one), entry] = []
                faults[row] = f"{type(error).__name__}: {error}"
        self._read_any |= len(faults) < len(known)
        if faults:
            row, fault = next(iter(faults.items()))
            if len(faults) > 1 and not self._read_any:
                raise UserError(f"CodeTests cannot read column {self.column!r} of any row; row {row}: {fault}")
            if not self._warned:
                log.warning("CodeTests cannot read column %r of some rows, which get no score: %s", self.column, fault)
            self._warned = True
        broken = {(id(tests[row]), entries[row]) for row in faults}
        keys = [(id(one), entry) for one, entry in zip(tests, entries, strict=True)]
        return [known[key] or None for key in keys], sum(key in broken for key in keys)


def _share_of_cores() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    ranks = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("WORLD_SIZE") or "1"
    return max(1, cores // max(1, int(ranks)))
