"""Runs that are struck 20 times by each kind of strike at random moments, and end as the run that never was."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.kills import KINDS, Chain, Life, begin, steps_to_strike, wait
from tests.integration.resuming import SHARDED

pytestmark = [pytest.mark.integration, pytest.mark.timeout(7200)]

EACH = int(os.environ.get("STRIKES", "20"))
"""Strikes of each kind, in each way to run."""
FAR = 16
"""Rollouts, of thirty, after which a run is left to end: the next strike might come too late."""
WAYS: dict[str, tuple[int, list[Any]]] = {
    "one process": (1, ["ddp"]),
    "ddp": (2, ["ddp"]),
    "fsdp2": (2, ["fsdp2", SHARDED]),
}
"""Ranks, and the strategies that lives take in turn: with checkpoints in one file, and in shards."""


@pytest.fixture(scope="module")
def straight(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The run that nothing strikes, in each way."""
    root = tmp_path_factory.mktemp("straight")
    for way, (ranks, (strategy, *_)) in WAYS.items():
        life = begin(steps_to_strike(tiny, root / way), ranks=ranks, strategy=strategy)
        assert life.end(600) == 0, life.log.read_text()[-4000:]
    return {way: root / way for way in WAYS}


def strike(chain: Chain, kinds: list[str], strategies: list[Any]) -> None:
    """Until the run has come far or no kind is left; then it goes on to its end."""
    while kinds and chain.newest() < FAR:
        chain.strategy = strategies[len(kinds) % len(strategies)]
        chain.strike(kinds.pop())
    chain.strategy = strategies[0]
    chain.finish()


@pytest.mark.parametrize("way", WAYS)
def test_twenty_of_each_kind(
    tiny: Path,
    tmp_path: Path,
    straight: dict[str, Path],
    way: str,
    record_property: Callable[[str, object], None],
) -> None:
    ranks, strategies = WAYS[way]
    kinds = [kind for kind in KINDS for _ in range(EACH)]
    random.Random(way).shuffle(kinds)
    struck: list[dict[str, object]] = []
    runs = 0
    while kinds:
        runs += 1
        chain = Chain(steps_to_strike(tiny, tmp_path / f"{runs}"), ranks=ranks, seed=runs)
        strike(chain, kinds, strategies)
        assert chain.differences(straight[way]) == [], runs
        struck += chain.struck
    record_property("runs", runs)
    record_property("strikes", {kind: sum(each["kind"] == kind for each in struck) for kind in KINDS})
    record_property("struck", struck)


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[None]:
    """A disk of its own, of so many MB, at ``folder``."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user cannot mount a tmpfs")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


class OnSmallDisk(Chain):
    """Its full disk is one: a file takes up what is left of it."""

    def _fill(self, life: Life) -> None:
        ballast, there = self.folder.parent / "ballast", self.newest()
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        time.sleep(0.3)  # not so long that the run is over, which without its last checkpoint is no success
        assert not life.over, life.log.read_text()[-4000:]
        ballast.unlink()
        assert self.newest() >= there
        there = self.newest()
        wait(life, lambda: self.newest() > there)


@pytest.mark.parametrize("way", ["one process", "ddp"])
def test_a_disk_that_is_full(
    tiny: Path,
    tmp_path: Path,
    straight: dict[str, Path],
    way: str,
    record_property: Callable[[str, object], None],
) -> None:
    """A small one, with the run folder and its log on it."""
    ranks, strategies = WAYS[way]
    kinds = ["full disk"] * EACH
    runs = 0
    while kinds:
        runs += 1
        with small_disk(tmp_path / f"disk{runs}", 24):
            config = steps_to_strike(tiny, tmp_path / f"disk{runs}" / "run")
            chain = OnSmallDisk(config, ranks=ranks, seed=runs)
            strike(chain, kinds, strategies)
            assert chain.differences(straight[way]) == [], runs
    record_property("strikes", {"full disk of 24 MB": EACH})
    record_property("runs", runs)
