"""The process behind ``pool``: forks workers from a warm template, times them and kills the late ones.

``serve`` is its whole life. It stays single-threaded and imports only the standard library by itself, so that a fork is
safe and takes milliseconds. What a worker has started dies with it: on Linux, processes that have lost their parent
fall to this one, which kills them, whatever group or session they are in.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import resource
import select
import signal
import socket
import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from grpo_lightning.rewards.isolation.worker import Answer, die_with, flush, limit_memory, receive, send, work

PARENT_CHECK_SECONDS = 1.0
PATIENCE_SECONDS = 5.0
"""For a worker to take a call or to finish an answer that it has begun, on top of what the size takes."""
MOST_OUTPUT_BYTES = 1 << 16
"""What the workers of one request may print, in all; the rest is read and dropped."""

_SET_CHILD_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER


@dataclass
class _Worker:
    pid: int
    channel: socket.socket
    output: int
    """Where its stdout and stderr are read; -1 once it has closed both."""
    item: int | None = None
    deadline: float = 0.0
    is_new: bool = True
    """False once it has been given an item."""
    ended: bool = False

    def is_gone(self) -> bool:
        """True if it has ended, which a child of its own may hide by holding its socket open."""
        self.ended = self.ended or os.waitpid(self.pid, os.WNOHANG)[0] == self.pid
        return self.ended


class _Server:
    def __init__(self, parent: socket.socket, creator: int) -> None:
        self.parent, self.creator = parent, creator
        self.workers: list[_Worker] = []
        self.warmed: set[bytes] = set()
        self.kept: set[int] = set()
        self.memory = 0
        self.output, self.dropped = bytearray(), 0

    def serve(self) -> None:
        """Answer requests until the parent closes its end or is gone."""
        while os.getppid() == self.creator:
            if select.select([self.parent], [], [], PARENT_CHECK_SECONDS)[0]:
                warm_up, *request = receive(self.parent)
                failure = self.warm(warm_up)
                send(self.parent, failure)
                if failure is None:
                    self.output, self.dropped = bytearray(), 0
                    answers = self.run(*request)
                    self.end_strays()
                    send(self.parent, (answers, bytes(self.output), self.dropped))

    def warm(self, warm_up: bytes | None) -> str | None:
        """Call it here, once; what went wrong, if anything."""
        if warm_up is None or warm_up in self.warmed:
            return None
        # Workers that were forked before this import would pay for it inside an item's deadline.
        self.keep_workers(0)
        try:
            pickle.loads(warm_up)()
        except BaseException as error:
            return f"{type(error).__name__}: {error}"[:1000]
        self.warmed.add(warm_up)
        self.kept = _children()
        return None

    def run(self, payloads: list[bytes], count: int, limit: float, memory: int, give_up: int) -> list[Answer]:
        """Answers of all items, in order; a late item's worker is killed and replaced.

        Once ``give_up`` items have failed before any has not, the rest is skipped.
        """
        waiting, answers = deque(range(len(payloads))), dict[int, Answer]()
        self.keep_workers(count if memory == self.memory else 0)
        self.memory = memory
        good = False
        while len(answers) < len(payloads):
            if give_up and len(answers) >= give_up and not good:
                self.keep_workers(0)
                break
            while len(self.workers) < min(count, len(waiting) + sum(w.item is not None for w in self.workers)):
                self.fork(memory)
            for worker in [worker for worker in self.workers if worker.item is None]:
                if waiting and (failure := self.start(worker, waiting, payloads, limit)):
                    answers[waiting.popleft()] = failure
            for worker, answer in self.wait(limit):
                assert worker.item is not None
                answers[worker.item] = answer
                worker.item = None
                good = good or answer[0] in ("value", "error")
                if answer[0] not in ("value", "error"):
                    self.end(worker)
        return [answers.get(index, ("skipped", "not called")) for index in range(len(payloads))]

    def start(self, worker: _Worker, waiting: deque[int], payloads: list[bytes], limit: float) -> Answer | None:
        """Give the next item to an idle worker; what there is to say about the item if it cannot be given to any.

        A worker that has died while idle is dropped and costs no item; nor does one that is stuck in what an earlier
        item has left running. A new one has no excuse, and another would fare no better.
        """
        try:
            send(worker.channel, payloads[waiting[0]], patience=PATIENCE_SECONDS)
        except OSError as error:
            self.end(worker)
            if not worker.is_new:
                return None
            late = isinstance(error, TimeoutError)
            return ("timeout", "not taken in time") if late else ("crash", "its process ended")
        worker.item, worker.is_new = waiting.popleft(), False
        worker.deadline = time.monotonic() + limit
        return None

    def wait(self, limit: float) -> list[tuple[_Worker, Answer]]:
        """Workers that are done with their item, one way or another."""
        busy = [worker for worker in self.workers if worker.item is not None]
        nearest = min((worker.deadline for worker in busy), default=0.0) - time.monotonic()
        channels: list[Any] = [worker.channel for worker in busy]
        outputs = [worker.output for worker in busy if worker.output >= 0]
        timeout = max(0.0, min(nearest, PARENT_CHECK_SECONDS))
        ready = select.select([self.parent, *channels, *outputs], [], [], timeout)[0]
        if self.parent in ready or os.getppid() != self.creator:  # it never asks twice, so this is its end
            raise EOFError
        done: list[tuple[_Worker, Answer]] = []
        for worker in busy:
            if worker.output in ready:
                self.read_output(worker)
            if worker.channel in ready:
                try:
                    done.append((worker, receive(worker.channel, patience=PATIENCE_SECONDS)))
                    self.read_output(worker)
                except TimeoutError:
                    done.append((worker, ("timeout", "its answer has no end")))
                except (EOFError, OSError, pickle.UnpicklingError):
                    done.append((worker, ("crash", "its process ended")))
            elif time.monotonic() >= worker.deadline:
                done.append((worker, ("timeout", f"over the limit of {limit:g} s")))
            elif worker.is_gone():
                done.append((worker, ("crash", "its process ended")))
        return done

    def read_output(self, worker: _Worker) -> None:
        """Take what a worker has printed, so that it never waits for a reader; keep the beginning."""
        if worker.output < 0:
            return
        with contextlib.suppress(BlockingIOError):
            text = os.read(worker.output, MOST_OUTPUT_BYTES)  # as much as a pipe holds
            if not text:
                os.close(worker.output)
                worker.output = -1
            room = MOST_OUTPUT_BYTES - len(self.output)
            self.output += text[:room]
            self.dropped += len(text[room:])

    def fork(self, memory: int) -> None:
        """One more worker."""
        ours, theirs = socket.socketpair()
        read, write = os.pipe()
        flush()
        server, pid = os.getpid(), os.fork()
        if pid:
            theirs.close()
            os.close(write)
            os.set_blocking(read, False)
            with contextlib.suppress(OSError):
                os.setpgid(pid, pid)
            self.workers.append(_Worker(pid, ours, read))
            return
        try:
            # A sibling's or the parent's socket kept open here would hide their end-of-file from one another.
            for channel in [ours, self.parent, *(worker.channel for worker in self.workers)]:
                channel.close()
            for output in [read, *(worker.output for worker in self.workers if worker.output >= 0)]:
                os.close(output)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.setpgid(0, 0)
            for stream in (1, 2):
                os.dup2(write, stream)
            os.close(write)
            with contextlib.suppress(Exception):  # what is printed before a crash is not lost
                sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
            if sys.platform == "linux":
                die_with(server)
                limit_memory(memory)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            work(theirs)
        finally:
            os._exit(1)

    def keep_workers(self, count: int) -> None:
        """End all but the first ``count``."""
        for worker in self.workers[count:]:
            self.end(worker)

    def end(self, worker: _Worker) -> None:
        """Kill a worker and every process that it has started."""
        self.workers.remove(worker)
        if not worker.is_gone():
            os.kill(worker.pid, signal.SIGKILL)
            os.waitpid(worker.pid, 0)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.pid, signal.SIGKILL)
        self.read_output(worker)
        worker.channel.close()
        if worker.output >= 0:
            os.close(worker.output)
        self.end_strays()

    def end_strays(self) -> None:
        """Kill processes whose parent, a worker or a child of one, is gone: this process has inherited them."""
        end = time.monotonic() + 5.0  # for a fork bomb
        while (strays := _children() - self.kept - {w.pid for w in self.workers}) and time.monotonic() < end:
            for pid in strays:
                with contextlib.suppress(ProcessLookupError, ChildProcessError):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)


def _children() -> set[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return {int(pid) for pid in file.read().split()}
    except OSError:  # not Linux: a worker's process group must do
        return set()


def serve(parent: socket.socket, creator: int) -> None:
    """Answer requests as long as the process ``creator`` lives and keeps its end of the socket open."""
    ending = False

    def end_if_orphaned(*_: Any) -> None:
        nonlocal ending
        if os.getppid() != creator and not ending:
            ending = True
            raise SystemExit

    # The kernel's word that the parent is gone ends what would go on without looking, such as a slow import. It comes
    # for every thread that has started this process or taken it over as well. A scheduler's SIGTERM goes to the parent
    # too, which is the one to end this process.
    signal.signal(signal.SIGTERM, end_if_orphaned)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1)
        die_with(creator, signal.SIGTERM)
    server = _Server(parent, creator)
    try:
        try:
            server.serve()
        finally:
            ending = True  # from here on no signal interrupts
    except (EOFError, ConnectionError, SystemExit):
        pass  # the parent's end
    finally:
        server.kept = set()
        server.keep_workers(0)
        server.end_strays()
