"""Commands on two ranks, and parts that go wrong on one of them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.integration.command_line import REPOSITORY

LIGHTNING = [sys.executable, "-m", "grpo_lightning"]
"""Lightning starts the second process itself."""
MARK = "TWO_RANKS_TEST"
"""An environment variable that every process of a run inherits, so that orphans are found."""


def torchrun() -> list[str]:
    """The command under ``torchrun``, on a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    launch = ["--nproc-per-node", "2", "--master-port", str(port), "-m", "grpo_lightning"]
    return [sys.executable, "-m", "torch.distributed.run", *launch]


@dataclass(frozen=True)
class Ending:
    """How a run on two ranks ended."""

    code: int
    out: str
    err: str
    seconds: float
    """From the event that was to end it."""
    orphans: list[str]
    """Command lines of processes that it left behind."""

    def lines(self, text: str) -> list[str]:
        """Lines of stderr that hold ``text``."""
        return [line for line in self.err.splitlines() if text in line]


class Run:
    """A command on two ranks, in a process group of its own as in a terminal."""

    def __init__(self, launch: list[str], *arguments: str, folder: Path, env: Mapping[str, str] | None = None) -> None:
        self.mark = uuid.uuid4().hex
        two = ["--trainer.devices", "2", "--trainer.accelerator", "cpu"]
        folder.mkdir(parents=True, exist_ok=True)
        self._files = (folder / f"{self.mark}.out").open("w+"), (folder / f"{self.mark}.err").open("w+")
        self.process = subprocess.Popen(
            [*launch, *arguments, *two],
            cwd=REPOSITORY,
            env={**os.environ, **(env or {}), MARK: self.mark},
            stdin=subprocess.DEVNULL,
            stdout=self._files[0],
            stderr=self._files[1],
            start_new_session=True,
        )

    def processes(self) -> dict[int, str]:
        """Every living process of this run, by id, with its command line."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                if f"{MARK}={self.mark}".encode() in (entry / "environ").read_bytes():
                    found[int(entry.name)] = (entry / "cmdline").read_text("utf-8", "replace").replace("\0", " ")
        return found

    def rank(self, number: int) -> int:
        """Process id of a rank."""
        for pid, line in self.processes().items():
            try:
                environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:  # it has ended since
                continue
            started = "-m grpo_lightning" in line and "torch.distributed.run" not in line
            local = next((v for v in environ if v.startswith(b"LOCAL_RANK=")), b"LOCAL_RANK=0")
            if started and local == f"LOCAL_RANK={number}".encode():
                return pid
        raise AssertionError(f"no process of rank {number}: {self.processes()}")

    def wait_for(self, file: Path, *, timeout: float = 60) -> None:
        """Until ``file`` is there."""
        end = time.monotonic() + timeout
        while not file.exists():
            if self.process.poll() is not None or time.monotonic() > end:
                self._kill()
                raise AssertionError(self._read())
            time.sleep(0.1)

    def interrupt(self) -> None:
        """Ctrl-C: every process of the foreground group gets it."""
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self, *, timeout: float = 60) -> Ending:
        """Wait for the end; whatever is left is found and killed."""
        start = time.monotonic()
        try:
            code = self.process.wait(timeout)
            seconds = time.monotonic() - start
            while self.processes() and time.monotonic() - start < min(seconds + 8, timeout):
                time.sleep(0.1)
            orphans = list(self.processes().values())
        except subprocess.TimeoutExpired:
            code, seconds, orphans = -999, timeout, [f"still running: {line}" for line in self.processes().values()]
        finally:
            self._kill()
        out, err = self._read()
        return Ending(code, out, err, seconds, orphans)

    def _kill(self) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def _read(self) -> tuple[str, str]:
        texts = []
        for file in self._files:
            file.flush()
            texts.append(Path(file.name).read_text("utf-8", "replace"))
        return texts[0], texts[1]
