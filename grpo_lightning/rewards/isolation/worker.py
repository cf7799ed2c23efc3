"""What a worker process does, and how the processes speak to one another.

Messages are length-prefixed pickles of plain values on a socket.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import pickle
import resource
import signal
import socket
import struct
import sys
import time
from typing import Any

SLOWEST_BYTES_PER_SECOND = 1e7
"""At which a message passes, after some seconds for a busy machine; sockets do a hundred times that."""

_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux' prctl

Answer = tuple[str, Any]
"""``("value", pickled)``, or the kind of a failure and a line about it."""


class _Plain(pickle.Unpickler):
    """Numbers, texts, lists and the like: reading what another process wrote must not run its code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} is no plain value")


def plain(payload: bytes) -> Any:
    """The plain value that was pickled; ``UnpicklingError`` for anything else."""
    return _Plain(io.BytesIO(payload)).load()


def send(channel: socket.socket, message: Any, *, patience: float | None = None) -> None:
    """Write one pickled message of plain values.

    Args:
        channel: where to.
        message: what to.
        patience: seconds for the other side to take it, on top of what its size takes at the slowest; None waits.

    Raises:
        TimeoutError: if the other side does not take it.
    """
    payload = pickle.dumps(message)
    channel.settimeout(None if patience is None else patience + len(payload) / SLOWEST_BYTES_PER_SECOND)
    channel.sendall(struct.pack("!Q", len(payload)) + payload)


def receive(channel: socket.socket, *, patience: float | None = None) -> Any:
    """Read one message.

    Args:
        channel: where from.
        patience: as for ``send``.

    Raises:
        EOFError: if the other side is gone.
        TimeoutError: if the message does not come to its end.
    """
    start = time.monotonic()
    (size,) = struct.unpack("!Q", _read(channel, 8, start, patience))
    return plain(_read(channel, size, start, patience))


def _read(channel: socket.socket, size: int, start: float, patience: float | None) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        if patience is not None:  # counted in what has come: a broken message may announce any size
            left = start + patience + len(parts) / SLOWEST_BYTES_PER_SECOND - time.monotonic()
            if left <= 0:
                raise TimeoutError
            channel.settimeout(left)
        part = channel.recv(min(size - len(parts), 1 << 20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def die_with(parent: int, by: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel signal this process once its parent is gone, or the thread in it that has started this one."""
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, by)
    if os.getppid() != parent:  # it died before the signal was set
        os._exit(1)


def limit_memory(more: int) -> None:
    """Cap what may be written to: not address space, of which torch and CUDA map plenty without using it."""
    with open("/proc/self/status") as file:
        in_use = next(int(line.split()[1]) for line in file if line.startswith("VmData:"))
    resource.setrlimit(resource.RLIMIT_DATA, (in_use * 1024 + more,) * 2)


def work(channel: socket.socket) -> None:
    """Call what comes, until the server ends this process."""
    worker = os.getpid()
    while True:
        payload = receive(channel)
        answer: Answer
        try:
            function, arguments = pickle.loads(payload)
            answer = ("value", pickle.dumps(function(*arguments)))
        except MemoryError:
            answer = ("memory", "over the memory limit")
        except BaseException as error:
            answer = ("error", f"{type(error).__name__}: {error}"[:1000])
        if os.getpid() != worker:  # the function has forked, and its child came back as well
            os._exit(0)
        flush()
        send(channel, answer)


def flush() -> None:
    """Pass on what was printed."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # closed or replaced by a function
            stream.flush()
