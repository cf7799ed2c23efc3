"""The process that runs a model's code: it knows nothing of the trainer but a socket.

It is started without the packages' ``__init__`` (see ``runs.START``), speaks length-prefixed JSON, confines itself as
far as the system allows and then forks one child for each case. The child drops what rights are left, sets its limits,
loads the solution and only then is told the test, or answers another child that runs it. When a case is over, every
process that it started is killed. Nothing in the solution's process knows an expected constant: outputs and values go
back to the trainer, which compares them.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from typing import Any

from grpo_lightning.rewards.code.child import run_child, run_test_apart
from grpo_lightning.rewards.code.confinement import (
    DEATH_SIGNAL,
    DUMPABLE,
    MOST_PROCESSES,
    SUBREAPER,
    descendants,
    enter_name_spaces,
    kill_all,
    prctl,
)

OUTPUT_LIMIT = 8 << 20
"""Bytes that one case may print or report."""
TICK_SECONDS = 0.02


def send(channel: socket.socket, message: Any) -> None:
    """Write one message."""
    payload = json.dumps(message).encode()
    channel.sendall(struct.pack("!I", len(payload)) + payload)


def receive(channel: socket.socket) -> Any:
    """Read one message; ``EOFError`` if the other side is gone."""
    (size,) = struct.unpack("!I", _read(channel, 4))
    return json.loads(_read(channel, size))


def _read(channel: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = channel.recv(min(size - len(parts), 1 << 20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


class _Case:
    """A running child, what it has written so far, and how long it may go on."""

    def __init__(self, job: dict[str, Any], number: int, channel: socket.socket, text: str | None) -> None:
        self.channel = channel
        self.job = job
        self.number = number
        self.deadline = time.monotonic() + job["time_limit"]
        path = os.path.join(job["folder"], "input")
        self.given = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.unlink(path)
        self._give(text or "")
        asks, self.asks = os.pipe()
        self.answers, answers = os.pipe()
        self.link, link = socket.socketpair()  # to the test, should it run in a process of its own
        self.pid = self.watched = os.fork()
        if self.pid == 0:
            folder = os.path.join(job["folder"], str(number))
            run_child(job, folder, (self.given, asks, answers), link, program=text is not None)
        os.close(asks)
        os.close(answers)
        link.close()
        os.set_blocking(self.answers, False)
        self.written = bytearray()
        self.status: int | None = None
        self.poll = select.poll()
        self.poll.register(channel, 0)
        self.poll.register(self.answers, select.POLLIN)
        self.handle = -1
        self._watch(self.pid)

    def _watch(self, pid: int) -> None:
        """Wake up when a process ends; where that cannot be, its end is seen at the next tick."""
        self.watched = pid
        if self.handle >= 0:
            self.poll.unregister(self.handle)
            os.close(self.handle)
        self.handle = -1
        with contextlib.suppress(AttributeError, OSError):
            self.handle = os.pidfd_open(pid)
            self.poll.register(self.handle, select.POLLIN)

    def _give(self, text: str) -> None:
        """Put a text where the child reads it: a file without a name, since a full pipe would make us wait."""
        payload, at = text.encode("utf-8", "replace"), 0
        while at < len(payload):
            at += os.pwrite(self.given, payload[at:], at)

    def tell(self, test: dict[str, Any]) -> bytes:
        """Run a test, now that the solution has been loaded; returns the nonce of its reports.

        In the solution's process, or in one forked for it, which reports by a pipe that the solution does not have.
        """
        nonce = os.urandom(16).hex().encode()
        test = {**test, "nonce": nonce.decode()}
        if test["apart"]:
            with contextlib.suppress(KeyError):
                self.poll.unregister(self.answers)
            os.close(self.answers)
            self.answers, answers = os.pipe()
            pid = os.fork()
            if pid == 0:
                folder = os.path.join(self.job["folder"], f"{self.number}-test")
                run_test_apart(self.job, folder, test, self.link, answers)
            os.close(answers)
            os.set_blocking(self.answers, False)
            self.poll.register(self.answers, select.POLLIN)
            self._watch(pid)
        self.link.close()
        self.written.clear()
        self._give(json.dumps({"apart": True} if test["apart"] else test))
        os.close(self.asks)
        self.asks = -1
        return nonce

    def wait(self, marker: bytes | None) -> str:
        """Until the marker is written or the child has ended; ``done`` for either, if it ended well."""
        looked = 0.0
        while True:
            events = dict(self.poll.poll(TICK_SECONDS * 1000))
            if events.get(self.channel.fileno()):
                raise EOFError  # the trainer is gone or wants no more
            if self.status is None and (ended := os.waitpid(self.watched, os.WNOHANG))[0]:
                self.status = ended[1]
            self._take()
            now = time.monotonic()
            if marker is not None and self.written.endswith(marker):
                return "done"
            if len(self.written) > OUTPUT_LIMIT:
                return "output"
            if self.status is not None:
                return "done" if marker is None and self.status == 0 else "failed"
            if now >= self.deadline:
                return "timeout"
            if now >= looked + TICK_SECONDS:
                looked = now
                if len(descendants()) > MOST_PROCESSES:
                    return "processes"

    def _take(self) -> None:
        """Read what there is; the limit bounds it."""
        with contextlib.suppress(BlockingIOError):
            while len(self.written) <= OUTPUT_LIMIT:
                part = os.read(self.answers, 1 << 16)
                if not part:
                    with contextlib.suppress(KeyError):
                        self.poll.unregister(self.answers)
                    return
                self.written += part

    def end(self) -> None:
        """Nothing of it is left."""
        if self.watched != self.pid and self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.watched, signal.SIGKILL)
        self.link.close()
        kill_all(self.pid, name_spaces=self.job["name_spaces"])
        for fd in (self.given, self.asks, self.answers, self.handle):
            if fd >= 0:
                os.close(fd)


def _run(job: dict[str, Any], number: int, request: dict[str, Any], channel: socket.socket) -> None:
    """Run one case and answer."""
    case = _Case(job, number, channel, request["input"])
    try:
        try:
            _answer(case, channel, program=request["input"] is not None)
        finally:
            case.end()
    except SystemExit:  # the death signal, which comes once, may fall into the clearing up
        case.end()
        raise


def _answer(case: _Case, channel: socket.socket, *, program: bool) -> None:
    marker = None
    if not program:
        status = case.wait(b"loaded\n")
        if status != "done":
            send(channel, {"status": status, "loaded": False})
            return
        send(channel, {"loaded": True})
        marker = case.tell(receive(channel)) + b"done\n"
    status = case.wait(marker)
    nonce = b"" if marker is None else marker[:-5]
    lines = bytes(case.written) if marker is None else _reports(case.written, nonce)
    send(channel, {"status": status, "written": lines.decode("latin-1")})


def _reports(written: bytearray, nonce: bytes) -> bytes:
    return b"\n".join(line[len(nonce) :] for line in bytes(written).split(b"\n") if line.startswith(nonce))


def _serve(job: dict[str, Any], channel: socket.socket) -> None:
    """One completion, in a fork of its own: confine it, then run its cases until the trainer ends it or is gone."""
    try:
        if job["name_spaces"]:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            enter_name_spaces(channel, job["folder"])
        else:
            prctl(DEATH_SIGNAL, signal.SIGTERM)
            prctl(SUBREAPER, 1)
        prctl(DUMPABLE, 0)  # its memory and files are not for the solution to look at
    except OSError as error:
        send(channel, {"error": str(error)})
        return
    send(channel, {"ready": True})
    number = 0
    while (request := receive(channel)) is not None:
        _run(job, number, request, channel)
        number += 1
    send(channel, {"ended": True})


def _ended(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(1)  # the finally-clauses clear up


class _Completions:
    """Forks a process for each completion, one after the other, until the trainer closes its end or is gone.

    Forks of this small process take a millisecond or two, where a new interpreter takes twenty.
    """

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.pid = 0
        self.folder = ""

    def run(self) -> None:
        while True:
            job = receive(self.channel)
            if os.getppid() != job["parent"]:
                return
            self.folder = job["folder"]
            self.pid = os.fork()
            if self.pid == 0:
                try:
                    with contextlib.suppress(EOFError, OSError):
                        _serve(job, self.channel)
                finally:
                    os._exit(0)
            os.waitpid(self.pid, 0)
            self.pid = 0

    def end(self) -> None:
        """A trainer that is gone cannot remove the folder."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):  # it may just have ended
                os.kill(self.pid, signal.SIGTERM)
                os.waitpid(self.pid, 0)
        if self.folder:
            _remove(self.folder)


def main() -> None:
    """Serve the trainer at the other end of standard input."""
    completions = _Completions(socket.socket(fileno=0))
    signal.signal(signal.SIGTERM, _ended)
    prctl(DEATH_SIGNAL, signal.SIGTERM)
    try:
        try:
            with contextlib.suppress(EOFError, OSError):
                completions.run()
        finally:
            completions.end()
    except SystemExit:  # the death signal, which comes once, may fall into the clearing up
        completions.end()
        raise


def _remove(folder: str) -> None:
    for place, folders, files in os.walk(folder, topdown=False):
        for name in (*files, *folders):
            with contextlib.suppress(OSError):
                path = os.path.join(place, name)
                os.rmdir(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
    with contextlib.suppress(OSError):
        os.rmdir(folder)
