"""Runs that are struck 20 times by each kind of strike at random moments, and end as the run that never was."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.kills import KINDS, Chain, Life, begin, steps_to_strike, wait

pytestmark = [pytest.mark.integration, pytest.mark.timeout(7200)]

EACH = int(os.environ.get("STRIKES", "20"))
"""Strikes of each kind, on one rank and on two."""
FAR = 16
"""Rollouts, of thirty, after which a run is left to end: the next strike might come too late."""


@pytest.fixture(scope="module")
def straight(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The run that nothing strikes, on one rank and on two."""
    root = tmp_path_factory.mktemp("straight")
    for ranks in (1, 2):
        life = begin(steps_to_strike(tiny, root / str(ranks)), ranks=ranks)
        assert life.end(600) == 0, life.log.read_text()[-4000:]
    return {ranks: root / str(ranks) for ranks in (1, 2)}


@pytest.mark.parametrize("ranks", [1, 2])
def test_twenty_of_each_kind(
    tiny: Path,
    tmp_path: Path,
    straight: dict[int, Path],
    ranks: int,
    record_property: Callable[[str, object], None],
) -> None:
    kinds = [kind for kind in KINDS for _ in range(EACH)]
    random.Random(ranks).shuffle(kinds)
    struck: list[dict[str, object]] = []
    runs = 0
    while kinds:
        runs += 1
        chain = Chain(steps_to_strike(tiny, tmp_path / f"{runs}"), ranks=ranks, seed=1000 * ranks + runs)
        while kinds and chain.newest() < FAR:
            chain.strike(kinds.pop())
        chain.finish()
        assert chain.differences(straight[ranks]) == [], runs
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
        self._wait_a_while(life)
        ballast.unlink()
        assert self.newest() >= there
        there = self.newest()
        wait(life, lambda: self.newest() > there)

    def _wait_a_while(self, life: Life) -> None:
        with contextlib.suppress(AssertionError):
            wait(life, lambda: "could not be written" in life.log.read_text(), seconds=2)
        assert not life.over, life.log.read_text()[-4000:]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_disk_that_is_full(
    tiny: Path,
    tmp_path: Path,
    straight: dict[int, Path],
    ranks: int,
    record_property: Callable[[str, object], None],
) -> None:
    """A small one, with the run folder and its log on it."""
    left, runs = EACH, 0
    while left:
        runs += 1
        with small_disk(tmp_path / f"disk{runs}", 24):
            config = steps_to_strike(tiny, tmp_path / f"disk{runs}" / "run")
            chain = OnSmallDisk(config, ranks=ranks, seed=2000 * ranks + runs)
            while left and chain.newest() < FAR:
                chain.strike("full disk")
                left -= 1
            chain.finish()
            assert chain.differences(straight[ranks]) == [], runs
    record_property("strikes", {"full disk of 24 MB": EACH})
    record_property("runs", runs)
