"""Runs the cases of completions in sandboxes, several at a time; the trainer's side.

Every completion gets a process of its own (about 20 ms of processor time to start), every case a fork of it. Waiting is
done by threads; the trainer is never forked and no signal handler is touched, so any thread may call.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_lightning.rewards.code.cases import Case
from grpo_lightning.rewards.code.sandbox import receive, send

log = logging.getLogger(__name__)

START_SECONDS = 30.0
"""How long a sandbox may take to start on a busy machine."""
GRACE_SECONDS = 10.0
"""How much longer than a case's limit its answer may take before the sandbox itself is given up."""
_ROOT = str(Path(__file__).resolve().parents[3])
# The packages stand there empty: importing them in earnest would load every reward before each completion.
START = """
import sys, types
root, name = sys.argv[1], ""
for part in ("grpo_lightning", "rewards", "code"):
    root, name = f"{root}/{part}", f"{name}.{part}".lstrip(".")
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [root]
from grpo_lightning.rewards.code.sandbox import main
main()
"""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one case, and one completion, may take."""

    case_seconds: float
    """Wall-clock seconds of one case, loading the solution included."""
    total_seconds: float
    """Wall-clock seconds of all cases of one completion; those that are left then count as late."""
    memory_bytes: int
    """Address space of each process."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What became of a completion's cases."""

    passed: int
    late: int
    """Cases that ran over a limit of time, or were not started because of it."""


class _Stopped(Exception):
    """The caller wants no more."""


class Sandboxes:
    """Runs several completions at a time.

    Args:
        workers: how many.
        limits: of each.
    """

    def __init__(self, *, workers: int, limits: Limits) -> None:
        self.workers = workers
        self.limits = limits

    def run(self, jobs: Sequence[tuple[str, Sequence[Case]]], *, until_failure: bool) -> list[Run]:
        """Run every job.

        Args:
            jobs: a solution and its cases.
            until_failure: the first case that fails ends a job.

        Raises:
            RuntimeError: if a sandbox cannot be started.
        """
        if not jobs:
            return []
        name_spaces = name_spaces_work()
        runs: dict[int, Run] = {}
        waiting = iter(enumerate(jobs))  # of a list: next() is one step of the interpreter, so threads may share it
        stop = threading.Event()

        def work() -> None:
            with _Sandbox(self.limits, name_spaces, stop) as sandbox:
                for index, (code, cases) in waiting:
                    runs[index] = sandbox.run(code, cases, until_failure)

        count = min(self.workers, len(jobs))
        with ThreadPoolExecutor(count, thread_name_prefix="code-tests") as pool:
            try:
                for worker in [pool.submit(work) for _ in range(count)]:
                    worker.result()
            except BaseException:
                stop.set()  # the other threads end their sandboxes within a second
                raise
        return [runs[index] for index in range(len(jobs))]


class _Sandbox:
    """A process that runs one completion after the other, each in a fork and a working folder of its own.

    Args:
        limits: of each completion.
        name_spaces: whether the system allows them.
        stop: when set, the run at hand ends with ``_Stopped``.
    """

    def __init__(self, limits: Limits, name_spaces: bool, stop: threading.Event) -> None:
        self.limits = limits
        self.name_spaces = name_spaces
        self.stop = stop
        self.process: subprocess.Popen[bytes] | None = None
        self.channel: socket.socket | None = None

    def __enter__(self) -> _Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, code: str, cases: Sequence[Case], until_failure: bool) -> Run:
        """Run the cases of one completion.

        Raises:
            RuntimeError: if the process cannot be started or confined.
        """
        folder = tempfile.mkdtemp(prefix="code-")
        try:
            self._begin(code, folder)
            return self._judge_all(cases, until_failure)
        except BaseException:
            self.close()  # whatever state it is in, the next completion gets a new one
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _judge_all(self, cases: Sequence[Case], until_failure: bool) -> Run:
        passed = late = 0
        end = time.monotonic() + self.limits.total_seconds
        try:
            for number, case in enumerate(cases):
                if time.monotonic() >= end:
                    late += len(cases) - number
                    break
                verdict, loaded = self._judge(case)
                passed += verdict == "passed"
                late += verdict == "timeout"
                if not loaded or (until_failure and verdict != "passed"):
                    break
            self._ask(None, GRACE_SECONDS)
        except TimeoutError:
            late += 1
            self.close()
        except (EOFError, OSError):  # the solution ended its own sandbox, or the system did for want of memory
            self.close()
        return Run(passed=passed, late=late)

    def _judge(self, case: Case) -> tuple[str, bool]:
        """``passed``, ``timeout`` or ``failed``, and whether the solution could be loaded at all."""
        seconds = self.limits.case_seconds + GRACE_SECONDS
        answer = self._ask({"input": case.stdin}, seconds)
        loaded = answer.get("loaded", True)
        if case.stdin is None and loaded:
            answer = self._ask(case.message(), seconds)
        if answer["status"] == "timeout":
            return "timeout", loaded
        passed = answer["status"] == "done" and case.holds(answer["written"].encode("latin-1"))
        return ("passed" if passed else "failed"), loaded

    def _begin(self, code: str, folder: str) -> None:
        job = {
            "code": code,
            "parent": os.getpid(),
            "folder": folder,
            "path": [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))],
            "time_limit": self.limits.case_seconds,
            "memory_limit": self.limits.memory_bytes,
            "name_spaces": self.name_spaces,
        }
        try:
            if self.channel is None:
                self._start()
            answer = self._ask(job, START_SECONDS)
        except (EOFError, OSError) as error:
            raise RuntimeError(f"the process that runs code could not be started: {error or 'it ended'}") from error
        if "error" in answer:
            raise RuntimeError(f"the process that runs code could not be confined: {answer['error']}")

    def _start(self) -> None:
        self.channel, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", "-c", START, _ROOT],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                cwd="/",
                env=_environment(),
                start_new_session=True,
            )

    def _ask(self, message: Any, seconds: float) -> Any:
        """Send a message, wait for its answer; the wait is cut in pieces so that a stop is noticed."""
        assert self.channel is not None
        end = time.monotonic() + seconds
        self.channel.settimeout(seconds)
        send(self.channel, message)
        self.channel.settimeout(0.5)
        while True:
            try:
                self.channel.recv(1, socket.MSG_PEEK)
                break
            except TimeoutError:
                if self.stop.is_set():
                    raise _Stopped from None
                if time.monotonic() >= end:
                    raise
        self.channel.settimeout(seconds)
        return receive(self.channel)

    def close(self) -> None:
        """End the process and all that it started: it clears up by itself when the channel closes."""
        if self.channel is not None:
            self.channel.close()
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(2.0)
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(2.0)
            self.process.kill()
            self.process.wait()
        self.process, self.channel = None, None


def _environment() -> dict[str, str]:
    """Nothing of the trainer's, which holds keys and paths, but what the interpreter itself may need."""
    kept = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "SYSTEMROOT") if name in os.environ}
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    return {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "CUDA_VISIBLE_DEVICES": "", **one_thread, **kept}


@functools.cache
def name_spaces_work() -> bool:
    """Whether code can be shut off from network, other processes and the file system here; tried once, logged once."""
    refusal = _refusal("open('file', 'w').write('x')", name_spaces=True)
    if not refusal:
        log.info("code tests run without network, sight of other processes, or writing outside their working folder")
        return True
    no_socket = "import socket\ntry: socket.socket()\nexcept OSError: pass\nelse: raise SystemExit(1)"
    network = "WITH" if _refusal(no_socket, name_spaces=False) else "without"
    log.warning(
        "code tests run %s network, and may write files and end processes wherever this user may: name spaces are not "
        "available (%s)",
        network,
        refusal,
    )
    return False


def _refusal(program: str, *, name_spaces: bool) -> str:
    """Why a program cannot run to its end in a sandbox; empty if it can."""
    limits = Limits(case_seconds=20.0, total_seconds=20.0, memory_bytes=1 << 30)
    try:
        with _Sandbox(limits, name_spaces, threading.Event()) as sandbox:
            run = sandbox.run(program, [Case(stdin="", holds=lambda _: True)], False)
    except RuntimeError as error:
        return " ".join(str(error).split())
    return "" if run.passed else "a program failed in them"
