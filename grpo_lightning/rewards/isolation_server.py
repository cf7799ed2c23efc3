"""The process behind ``isolation``: forks workers from a warm template, times them and kills the late ones.

``serve`` is its whole life; it speaks length-prefixed pickles over one socket.
It stays single-threaded and imports only the standard library by itself, so that a fork is safe and takes milliseconds.
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
import struct
import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

PARENT_CHECK_SECONDS = 1.0
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux' prctl


def send(channel: socket.socket, message: Any) -> None:
    """Write one pickled message."""
    payload = pickle.dumps(message)
    channel.sendall(struct.pack("!Q", len(payload)) + payload)


def receive(channel: socket.socket) -> Any:
    """Read one pickled message; ``EOFError`` if the other side is gone."""
    (size,) = struct.unpack("!Q", _read(channel, 8))
    return pickle.loads(_read(channel, size))


def _read(channel: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = channel.recv(min(size - len(parts), 1 << 20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


@dataclass
class _Worker:
    pid: int
    channel: socket.socket
    item: int | None = None
    deadline: float = 0.0

    def end(self) -> None:
        """Kill it for real and reap it."""
        self.channel.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def _fork(others: list[_Worker], parent: socket.socket, memory_limit: int) -> _Worker:
    ours, theirs = socket.socketpair()
    server = os.getpid()
    pid = os.fork()
    if pid:
        theirs.close()
        return _Worker(pid, ours)
    try:
        # A sibling's or the parent's socket kept open here would hide their end-of-file from one another.
        for channel in [ours, parent, *(other.channel for other in others)]:
            channel.close()
        if sys.platform == "linux":
            _die_with(server)
            with open("/proc/self/statm") as file:
                in_use = int(file.read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (in_use + memory_limit,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _work(theirs)
    finally:
        os._exit(1)


def _die_with(server: int) -> None:
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != server:  # it died before the signal was set
        os._exit(1)


def _work(channel: socket.socket) -> None:
    while True:
        payload = receive(channel)
        try:
            function, arguments = pickle.loads(payload)
            answer = pickle.dumps(("value", function(*arguments)))
        except MemoryError:
            answer = pickle.dumps(("memory", "over the memory limit"))
        except Exception as error:
            answer = pickle.dumps(("error", f"{type(error).__name__}: {error}"[:1000]))
        send(channel, answer)


def _start(worker: _Worker, workers: list[_Worker], waiting: deque[int], payloads: list[bytes], limit: float) -> None:
    """Give the next item to an idle worker; one that died while idle is dropped and costs no item."""
    if not waiting:
        return
    try:
        send(worker.channel, payloads[waiting[0]])
    except OSError:
        workers.remove(worker)
        worker.end()
        return
    worker.item = waiting.popleft()
    worker.deadline = time.monotonic() + limit


def _run(
    workers: list[_Worker], parent: socket.socket, payloads: list[bytes], count: int, limit: float, memory: int
) -> list[bytes]:
    """Answers of all items, in order; a late item's worker is killed and replaced."""
    waiting = deque(range(len(payloads)))
    answers: dict[int, bytes] = {}
    creator = os.getppid()
    while len(answers) < len(payloads):
        while len(workers) < min(count, len(waiting) + sum(w.item is not None for w in workers)):
            workers.append(_fork(workers, parent, memory))
        for worker in [worker for worker in workers if worker.item is None and waiting]:
            _start(worker, workers, waiting, payloads, limit)
        busy = [worker for worker in workers if worker.item is not None]
        nearest = min((worker.deadline for worker in busy), default=0.0) - time.monotonic()
        timeout = max(0.0, min(nearest, PARENT_CHECK_SECONDS))
        ready = select.select([worker.channel for worker in busy], [], [], timeout)[0]
        for worker in busy:
            item = worker.item
            assert item is not None
            if worker.channel in ready:
                try:
                    answers[item] = receive(worker.channel)
                    worker.item = None
                    continue
                except (EOFError, OSError):
                    answers[item] = pickle.dumps(("crash", "its process ended"))
            elif time.monotonic() >= worker.deadline:
                answers[item] = pickle.dumps(("timeout", f"over the limit of {limit:g} s"))
            else:
                continue
            workers.remove(worker)
            worker.end()
        if os.getppid() != creator:
            raise EOFError
    return [answers[index] for index in range(len(payloads))]


def serve(parent: socket.socket) -> None:
    """Answer batches until the parent closes its end or is gone."""
    workers: list[_Worker] = []
    warmed: set[bytes] = set()
    creator = os.getppid()
    try:
        while os.getppid() == creator:
            if not select.select([parent], [], [], PARENT_CHECK_SECONDS)[0]:
                continue
            warm_up, payloads, count, limit, memory = receive(parent)
            if warm_up is not None and warm_up not in warmed:
                # Workers that were forked before this import would pay for it inside an item's deadline.
                while workers:
                    workers.pop().end()
                pickle.loads(warm_up)()
                warmed.add(warm_up)
            send(parent, _run(workers, parent, payloads, count, limit, memory))
    except (EOFError, OSError):
        pass
    finally:
        while workers:
            workers.pop().end()
