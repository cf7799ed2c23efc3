"""Runs that are struck at random moments and gone on with, until one is done: is it the run that nothing ever struck?

Each life of a run is forked from a process that has imported everything, so that it costs half a second and not five.
"""

from __future__ import annotations

import contextlib
import errno
import io
import multiprocessing
import os
import random
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, BinaryIO

import lightning as L
import torch

import grpo_lightning.check.command
import grpo_lightning.cli  # noqa: F401
from grpo_lightning import checkpoint_files, files
from grpo_lightning.__main__ import main
from grpo_lightning.callbacks.checkpoint import newest_checkpoint, read_header
from grpo_lightning.checkpoint_files import write
from grpo_lightning.engines import TransformersEngine
from tests.integration.command_line import REPOSITORY, grpo, totals, written
from tests.integration.resuming import differences

HERE = "tests.integration.kills"
LIMIT_SECONDS = 60
KINDS = ("SIGKILL", "SIGTERM", "Ctrl-C", "full disk", "kill while saving")
CODES = {"SIGKILL": -9, "SIGTERM": 143, "Ctrl-C": 130, "full disk": -9, "kill while saving": -9}
"""How the first rank ends."""

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([HERE])


def steps_to_strike(policy: Path | str, folder: Path, **changes: Any) -> dict[str, Any]:
    """Thirty rollouts in five epochs, with a checkpoint after each."""
    every = {"class_path": "grpo_lightning.callbacks.checkpoint.RunCheckpoint", "init_args": {"every_n_rollouts": 1}}
    arguments = {
        "data__source": totals("train", 26),
        "samples__every_n_rollouts": 1,
        "trainer__max_steps": -1,
        "trainer__max_epochs": 5,
        "trainer__callbacks": [every, {"class_path": f"{HERE}.Pace"}],
    }
    return grpo(policy, folder, **(arguments | changes))


@dataclass
class Life:
    """A ``fit`` from its start to its end, of one rank or two."""

    ranks: list[ForkServerProcess]
    log: Path

    def end(self, seconds: float = LIMIT_SECONDS) -> int:
        """The first rank's exit code; no rank may be left then."""
        until = time.monotonic() + seconds
        for rank in self.ranks:
            rank.join(max(until - time.monotonic(), 0.1))
        left = [rank.pid for rank in self.ranks if rank.is_alive()]
        for rank in self.ranks:
            rank.kill()
            rank.join()
        assert not left, f"still running after {seconds} s\n{self.log.read_text()}"
        code = self.ranks[0].exitcode
        assert code is not None
        return code

    def signal(self, signum: int) -> None:
        """Send it to every rank, as a scheduler and a terminal do."""
        for rank in self.ranks:
            assert rank.pid is not None
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank.pid, signum)

    @property
    def over(self) -> bool:
        return not all(rank.is_alive() for rank in self.ranks)


def begin(
    config: dict[str, Any],
    *arguments: str,
    ranks: int = 1,
    save: Callable[..., None] | None = None,
    variables: Mapping[str, str] | None = None,
) -> Life:
    """Start ``fit``.

    Args:
        config: of the run.
        arguments: of the command, beside the configuration.
        ranks: 1, or 2 for DDP.
        save: what the first rank does in the place of writing a checkpoint.
        variables: of the environment.
    """
    folder = Path(config["trainer"]["default_root_dir"])
    log = folder.with_suffix(".log")
    words = ["fit", "--config", written(config, folder.with_suffix(".yaml")), *arguments]
    environments: list[Mapping[str, str]] = [{}]
    if ranks > 1:
        words += ["--trainer.strategy=ddp", f"--trainer.devices={ranks}"]
        with socket.socket() as probe:
            probe.bind(("localhost", 0))
            port = probe.getsockname()[1]
        whole = {"TORCHELASTIC_RUN_ID": "kills", "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
        whole |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "GROUP_RANK": "0"}
        environments = [whole | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]
    lives = []
    for number, environment in enumerate(environments):
        life = _context.Process(
            target=_live, args=(words, str(log), {**environment, **(variables or {})}, save if number == 0 else None)
        )
        life.start()
        lives.append(life)
    return Life(lives, log)


def _live(words: list[str], log: str, environment: Mapping[str, str], save: Callable[..., None] | None) -> None:
    os.setsid()
    os.chdir(REPOSITORY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update(environment)
    sys.argv = ["grpo-lightning", *words]
    if save is not None:
        checkpoint_files.write = save
    main()


@dataclass
class Chain:
    """One run, struck again and again.

    Args:
        config: of the run.
        ranks: 1, or 2 for DDP.
        seed: of the moments.
    """

    config: dict[str, Any]
    ranks: int
    seed: int
    struck: list[dict[str, Any]] = field(default_factory=list)
    """What was done: kind, step of the newest checkpoint then, exit code, seconds until the end."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.folder = Path(self.config["trainer"]["default_root_dir"])

    def newest(self) -> int:
        """Step of the checkpoint that ``last`` picks; 0 if there is none."""
        path = newest_checkpoint([self.folder / "checkpoints"], resumable=True)
        header = read_header(path) if path is not None else None
        return header.step if header else 0

    def strike(self, kind: str) -> None:
        """Go on with the run, and strike it at a random moment after it has got some way."""
        start = self.newest()
        save = Deadly(self.random.uniform(0, 1.3), after=self.random.randint(1, 2)) if "saving" in kind else None
        life = begin(self.config, *self._last(start), ranks=self.ranks, save=save)
        if save is None:
            wait(life, lambda: self.newest() > start)
            time.sleep(self.random.uniform(0, 0.08))
        before, since = self.newest(), time.monotonic()
        if kind == "full disk":
            self._fill(life)
        if kind in ("SIGTERM", "Ctrl-C"):
            life.signal(signal.SIGTERM if kind == "SIGTERM" else signal.SIGINT)
        elif save is None:
            life.signal(signal.SIGKILL)
        code = life.end()
        after, seconds = self.newest(), time.monotonic() - since
        self.struck.append({"kind": kind, "step": after, "code": code, "seconds": round(seconds, 1)})
        assert code == CODES[kind], f"{kind}: code {code}\n{life.log.read_text()[-4000:]}"
        if kind in ("SIGTERM", "Ctrl-C"):  # or their starter would kill the first, which may still save
            assert [rank.exitcode for rank in life.ranks[1:]] == [0] * (self.ranks - 1), life.log.read_text()[-4000:]
        assert after >= before, f"{kind}: {before} was there, {after} is\n{life.log.read_text()[-4000:]}"

    def _fill(self, life: Life) -> None:
        """No file may grow beyond 2 KB for a while: what the system says then is treated like a full disk."""
        with limited(life, 2000):
            there = self.newest()
            time.sleep(0.25)
            assert not life.over, life.log.read_text()[-4000:]  # it trains on
            assert there <= self.newest() <= there + 1  # one may have been written already, and is renamed
        there = self.newest()
        wait(life, lambda: self.newest() > there)

    def finish(self) -> None:
        """Go on to the end."""
        code = begin(self.config, *self._last(self.newest()), ranks=self.ranks).end(300)
        assert code == 0, self.folder.with_suffix(".log").read_text()[-4000:]
        drafts = [str(path) for path in self.folder.rglob(f"*{files.DRAFT}*")]
        assert drafts == [], "drafts of a killed run are left"

    def differences(self, whole: Path) -> list[str]:
        """Between this run and the one in ``whole``; samples that a full disk refused are lost."""
        return [name for name in differences(whole, self.folder) if not name.startswith("samples/")]

    def _last(self, step: int) -> list[str]:
        return ["--ckpt_path=last"] if step else []


def wait(life: Life, until: Callable[[], bool], *, seconds: float = LIMIT_SECONDS) -> None:
    """Until it is so, in a run that goes on."""
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end, life.log.read_text()[-4000:]
        assert not life.over, f"it ended by itself\n{life.log.read_text()[-4000:]}"
        time.sleep(0.01)


@contextlib.contextmanager
def limited(life: Life, size: int) -> Iterator[None]:
    """Every file that the run writes to may be so large, in bytes; more is refused as on a full disk."""
    pids = [rank.pid for rank in life.ranks if rank.pid is not None]
    for pid in pids:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    yield
    for pid in pids:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


class Deadly:
    """Writes checkpoints as the program does, and kills the process at one of them.

    Args:
        share: of the file's bytes that are written by then; above 1 it is all but renamed, above 1.15 it is renamed,
            and the older one is still there.
        after: number of the checkpoint.
    """

    def __init__(self, share: float, *, after: int) -> None:
        self.share, self.left = share, after

    def __call__(self, content: dict[str, Any], path: Path) -> None:
        self.left -= 1
        if self.left:
            write(content, path)
            return
        if self.share <= 1:
            buffer = io.BytesIO()
            torch.save(content, buffer)
            checkpoint_files.replacing = partial(_mortal, room=int(buffer.tell() * self.share))
        elif self.share <= 1.15:
            files.take_place = _die
        write(content, path)
        _die()


def _die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def _mortal(path: Path, *, room: int) -> Iterator[Any]:
    with files.replacing(path) as file:
        yield Mortal(file, room)


class Mortal:
    """A file that kills the process once it holds so many bytes."""

    def __init__(self, file: BinaryIO, room: int) -> None:
        self.file, self.room = file, room

    def write(self, data: Any) -> int:
        size = len(data)
        self.file.write(bytes(data)[: self.room])
        self.room -= size
        if self.room <= 0:
            self.file.flush()
            _die()
        return size

    def flush(self) -> None:
        self.file.flush()


def slowly(content: dict[str, Any], path: Path) -> None:
    """Write a checkpoint that takes its time."""
    time.sleep(1)
    write(content, path)


class Refused:
    """Writes so many checkpoints; then the disk is full."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self, content: dict[str, Any], path: Path) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(content, path)


class Pace(L.Callback):
    """Bounds how many rollouts go by between two strikes, however fast the machine is."""

    def on_train_batch_start(self, *args: Any) -> None:
        time.sleep(0.03)


class SlowEngine(TransformersEngine):
    """Takes its time from the third rollout on, in small pieces as a sampler's steps are."""

    calls = 0

    def generate(self, *arguments: Any, **options: Any) -> Any:
        type(self).calls += 1
        end = time.monotonic() + (600 if self.calls >= 3 else 0)
        while time.monotonic() < end:
            time.sleep(0.01)
        return super().generate(*arguments, **options)
