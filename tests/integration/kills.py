"""Runs that are struck at random moments and gone on with, until one is done: is it the run that nothing ever struck?

Each life of a run is forked from a process that has imported everything, so that it costs half a second and not five.
"""

from __future__ import annotations

import contextlib
import json
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
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import grpo_lightning.check.command
import grpo_lightning.cli  # noqa: F401
from grpo_lightning import checkpoint_files, files
from grpo_lightning.__main__ import main
from grpo_lightning.callbacks.checkpoint import newest_checkpoint, read_header
from tests.integration.command_line import REPOSITORY, grpo, totals, written
from tests.integration.kill_parts import SLOW_FROM, Deadly
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
        "trainer__callbacks": [every, {"class_path": "tests.integration.kill_parts.Pace"}],
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
    strategy: str | dict[str, Any] = "ddp",
    save: Callable[..., None] | None = None,
    variables: Mapping[str, str] | None = None,
) -> Life:
    """Start ``fit``.

    Args:
        config: of the run.
        arguments: of the command, beside the configuration.
        ranks: 1 or 2.
        strategy: of two ranks.
        save: what the first rank does in the place of writing a checkpoint.
        variables: of the environment.
    """
    folder = Path(config["trainer"]["default_root_dir"])
    log = folder.with_suffix(".log")
    words = ["fit", "--config", written(config, folder.with_suffix(".yaml")), *arguments]
    environments: list[Mapping[str, str]] = [{}]
    if ranks > 1:
        named = strategy if isinstance(strategy, str) else json.dumps(strategy)
        words += [f"--trainer.strategy={named}", f"--trainer.devices={ranks}"]
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
    if isinstance(save, Deadly):
        save.of_shards()
    main()


@dataclass
class Chain:
    """One run, struck again and again.

    Args:
        config: of the run.
        ranks: 1 or 2.
        seed: of the moments.
        strategy: of two ranks; it may change from life to life.
    """

    config: dict[str, Any]
    ranks: int
    seed: int
    strategy: str | dict[str, Any] = "ddp"
    struck: list[dict[str, Any]] = field(default_factory=list)
    """What was done: kind, step of the newest checkpoint then, exit code, seconds until the end."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.folder = Path(self.config["trainer"]["default_root_dir"])

    def newest(self) -> int:
        """Step of the checkpoint that ``last`` picks; 0 if there is none."""
        for _ in range(3):  # a run that goes on may remove what was just seen
            path = newest_checkpoint([self.folder / "checkpoints"], resumable=True)
            if path is not None and (header := read_header(path)):
                return header.step
        return 0

    def strike(self, kind: str) -> None:
        """Go on with the run, and strike it at a random moment after it has got some way."""
        start = self.newest()
        save = Deadly(self.random.uniform(0, 1.3), after=self.random.randint(1, 2)) if "saving" in kind else None
        life = self._begin(start, save=save, variables={SLOW_FROM: str(start + 6)})
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
        if save is not None:
            assert bool(self._drafts()) == save.before_the_end, "it was not killed where it should be"

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
        code = self._begin(self.newest()).end(300)
        assert code == 0, self.folder.with_suffix(".log").read_text()[-4000:]
        assert self._drafts() == [], "drafts of a killed run are left"

    def _drafts(self) -> list[Path]:
        return list(self.folder.rglob(f"*{files.DRAFT}"))

    def differences(self, whole: Path) -> list[str]:
        """Between this run and the one in ``whole``; samples that a full disk refused are lost."""
        return [name for name in differences(whole, self.folder) if not name.startswith("samples/")]

    def _begin(self, step: int, **options: Any) -> Life:
        last = ["--ckpt_path=last"] if step else []
        return begin(self.config, *last, ranks=self.ranks, strategy=self.strategy, **options)


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
