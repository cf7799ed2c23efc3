"""Calls that may hang, eat memory or crash, made in processes that can be killed.

Symbolic algebra on a model's text has no upper bound (``9^{9^{9^9}}``), and a signal-based time limit works only on the
main thread. So each call runs in a worker process with its own deadline and memory limit; a late worker is killed and
replaced. The workers are forked from a small template process that is started on first use and never imports torch or
the user's ``__main__``; a replacement takes milliseconds. No signal handler is touched: any thread may call.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_lightning.errors import UserError, in_one_line
from grpo_lightning.rewards.isolation.worker import Answer, plain, receive, send

TIME_LIMIT_SECONDS = 5.0
"""Wall-clock seconds for one call, counted from the moment its worker starts on it."""
MEMORY_LIMIT_BYTES = 1 << 30
"""Memory that one worker may take on top of the template's."""
WARM_UP_SECONDS = 300.0
"""For the imports of a warm-up."""
STOP_SECONDS = 5.0
"""For the template process to kill what it has started, before it is killed itself."""

_SERVER = "grpo_lightning.rewards.isolation.server"


@dataclass(frozen=True)
class Outcome:
    """What became of one isolated call."""

    value: Any = None
    """What the function returned; None if it failed."""
    failure: str | None = None
    """None, ``"timeout"``, ``"memory"``, ``"crash"`` (its process ended), ``"error"`` (it raised) or ``"skipped"``."""
    detail: str = ""
    """One line about the failure."""


@dataclass
class _Template:
    """The process that workers are forked from, while there is one."""

    process: subprocess.Popen[bytes] | None = None
    channel: socket.socket | None = None
    owner: int = field(default_factory=os.getpid)
    """The process that has started it."""

    def stop(self) -> None:
        """End it; several threads may do so at once, and some may wait for its answer."""
        process, channel = self.process, self.channel
        self.process = self.channel = None
        if self.owner != os.getpid():  # a fork, whose parent goes on using it
            return
        if channel is not None:
            with contextlib.suppress(OSError):
                channel.shutdown(socket.SHUT_RDWR)
            channel.close()
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
            process.kill()
            process.wait()


class IsolatedPool:
    """A few worker processes behind a lock; started on first use.

    They end with ``close``, once nothing refers to the pool, or with this process however it ends.

    Args:
        workers: calls that run at the same time; by default one per core, at most 4.
    """

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or max(1, min(4, os.cpu_count() or 1))
        self._lock = threading.Lock()
        self._template = _Template()
        weakref.finalize(self, self._template.stop)

    def run(
        self,
        function: Callable[..., Any],
        rows: Sequence[tuple[Any, ...]],
        *,
        warm_up: Callable[[], None] | None = None,
        time_limit: float = TIME_LIMIT_SECONDS,
        memory_limit: int = MEMORY_LIMIT_BYTES,
        workers: int | None = None,
        give_up: int = 0,
    ) -> list[Outcome]:
        """Call ``function(*row)`` for every row.

        Args:
            function: importable by name (not a lambda, not from ``__main__``).
            rows: positional arguments of each call; must pickle. What the function returns must be plain (numbers,
                texts, lists, dicts and the like): an object's class would run its code here.
            warm_up: called once in the template before workers are forked, for slow imports.
            time_limit: wall-clock seconds per call.
            memory_limit: bytes per worker.
            workers: as for the pool; others are ended. One worker serves all calls that are made with ``workers=1``.
            give_up: skip the rest once this many calls have exceeded a limit or crashed before any has ended well; 0
                never does.

        Returns:
            One outcome per row, in order.

        Raises:
            UserError: if the workers cannot import the function or be sent its arguments, or if the warm-up fails.
            RuntimeError: if the template process cannot be started or dies.

        What the calls print comes out on stderr, up to 64 KiB. Processes that a call has started are killed with its
        worker, and at once if they have outlived the process that started them.
        """
        if function.__module__ == "__main__" or "<" in function.__qualname__:
            raise UserError(
                f"{function.__qualname__} cannot run isolated: put it at the top level of an importable module"
            )
        if not rows:
            return []
        try:
            payloads = [pickle.dumps((function, row)) for row in rows]
        except Exception as error:
            raise UserError(f"what it is given cannot be sent to another process ({in_one_line(error)})") from None
        start = None if warm_up is None else pickle.dumps(warm_up)
        request = (start, payloads, workers or self.workers, time_limit, memory_limit, give_up)
        with self._lock:
            channel = self._connect()
            try:
                send(channel, request)
                channel.settimeout(WARM_UP_SECONDS)
                failure = receive(channel)
                channel.settimeout(None)
                answers, output, dropped = ([], b"", 0) if failure else receive(channel)
            except (EOFError, OSError) as error:
                self._template.stop()
                raise RuntimeError("the process that runs isolated rewards died; its message is above") from error
            except BaseException:  # Ctrl-C between the two leaves an answer in the pipe that belongs to nobody
                self._template.stop()
                raise
        if failure:
            raise UserError(f"a worker process cannot import what it needs: {failure}")
        _print(output, dropped)
        return [_outcome(answer) for answer in answers]

    def close(self) -> None:
        """Stop every worker; the next ``run`` starts new ones."""
        held = self._lock.acquire(timeout=1.0)  # a thread may hold it in a call that never returns
        try:
            self._template.stop()
        finally:
            if held:
                self._lock.release()

    def _connect(self) -> socket.socket:
        template = self._template
        if template.owner != os.getpid():
            # After a fork it is still the parent's; two processes on one socket would mix answers.
            template.process, template.channel, template.owner = None, None, os.getpid()
        if template.channel is not None:
            return template.channel
        ours, theirs = socket.socketpair()
        environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONSAFEPATH="1")
        environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
        arguments = f"socket.socket(fileno={theirs.fileno()}), {os.getpid()}"
        program = f"import socket; from {_SERVER} import serve; serve({arguments})"
        template.process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=environment,
            pass_fds=[theirs.fileno()],
            start_new_session=True,  # Ctrl-C reaches us alone; the workers go when our end of the socket closes
        )
        theirs.close()
        template.channel = ours
        return ours


def _outcome(answer: Answer) -> Outcome:
    kind, content = answer
    if kind != "value":
        return Outcome(failure=kind, detail=content)
    try:
        return Outcome(value=plain(content))
    except pickle.UnpicklingError as error:
        return Outcome(failure="error", detail=str(error))


def _print(output: bytes, dropped: int) -> None:
    """What the workers have printed."""
    if output:
        text = output.decode("utf-8", "replace")
        note = f"\n[{dropped} more bytes were printed and are not shown]\n" if dropped else ""
        print(text + note, end="", file=sys.stderr, flush=True)


SHARED_POOL = IsolatedPool()
"""The pool that the built-in rewards use."""
