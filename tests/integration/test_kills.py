"""A run that is killed again and again at random moments ends as the one that never was, to the last bit.

And two faults more that are cheap to try here.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.integration.command_line import grpo, rows
from tests.integration.kills import KINDS, Chain, begin, steps_to_strike
from tests.integration.resuming import differences

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def straight(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The run that nothing strikes, on one rank and on two."""
    root = tmp_path_factory.mktemp("straight")
    lives = [begin(steps_to_strike(tiny, root / str(ranks)), ranks=ranks) for ranks in (1, 2)]
    for life in lives:
        assert life.end(300) == 0, life.log.read_text()[-4000:]
    assert len(rows(root / "1")) == 30
    return {ranks: root / str(ranks) for ranks in (1, 2)}


@pytest.mark.parametrize("ranks", [1, 2])
def test_each_kind_of_strike(tiny: Path, tmp_path: Path, straight: dict[int, Path], ranks: int) -> None:
    chain = Chain(steps_to_strike(tiny, tmp_path / "run"), ranks=ranks, seed=ranks)
    kinds = list(KINDS)
    chain.random.shuffle(kinds)
    for kind in kinds:
        chain.strike(kind)
    chain.finish()
    assert chain.differences(straight[ranks]) == []


def slow(tiny: Path, folder: Path, grace: float) -> dict[str, Any]:
    """A run whose third rollout would take ten minutes, and that has as many seconds to end in; few checkpoints."""
    stop = {"class_path": "grpo_lightning.callbacks.stop_signal.StopOnSignal", "init_args": {"grace_seconds": grace}}
    return steps_to_strike(
        tiny, folder, rollout__engine="tests.integration.kills.SlowEngine", trainer__callbacks=[stop]
    )


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_rollout_that_takes_too_long_is_given_up_and_the_one_before_is_saved(
    tiny: Path, tmp_path: Path, straight: dict[int, Path], ranks: int
) -> None:
    config = slow(tiny, tmp_path / "run", grace=3)
    life = begin(config, ranks=ranks)
    chain = Chain(config, ranks=ranks, seed=0)
    chain._wait(life, lambda: (tmp_path / "run" / "metrics.csv").exists() and len(rows(tmp_path / "run")) == 2)
    time.sleep(0.3)
    since = time.monotonic()
    life.signal(signal.SIGTERM)
    assert life.end() == 143, life.log.read_text()
    assert time.monotonic() - since < 5
    said = life.log.read_text()
    assert said.count("SIGTERM: stopping after this rollout, in 3 s at most") == 1
    assert "go on with --ckpt_path last, from step 2" in said
    assert "Traceback" not in said
    assert chain.newest() == 2
    del config["rollout"]["engine"]
    config = steps_to_strike(tiny, tmp_path / "run", trainer__callbacks=[])
    assert begin(config, "--ckpt_path=last", ranks=ranks).end(300) == 0
    found = differences(straight[ranks], tmp_path / "run")
    assert found == []


def test_a_second_ctrl_c_ends_a_run_at_once(tiny: Path, tmp_path: Path) -> None:
    life = begin(slow(tiny, tmp_path / "run", grace=60))
    chain = Chain(slow(tiny, tmp_path / "run", grace=60), ranks=1, seed=0)
    chain._wait(life, lambda: (tmp_path / "run" / "metrics.csv").exists() and len(rows(tmp_path / "run")) == 2)
    time.sleep(0.3)
    life.signal(signal.SIGINT)
    time.sleep(0.3)
    assert not life.over
    since = time.monotonic()
    life.signal(signal.SIGINT)
    assert life.end() == 130
    assert time.monotonic() - since < 3
    assert "stopped: by Ctrl-C; ended at once; there is no checkpoint to go on from" in life.log.read_text()


def test_the_second_rank_fails_in_its_data(tiny: Path, tmp_path: Path) -> None:
    """Nobody but itself ends the first one, which waits for it."""
    config = grpo(tiny, tmp_path / "run", data__source="tests.integration.failing_parts.Data")
    life = begin(config, ranks=2, variables={"FAILS": "1:error"})
    assert life.end() == 1
    said = life.log.read_text()
    assert "x in the data" in said
    (reason,) = (line for line in said.splitlines() if line.startswith("stopped: "))
    assert reason == "stopped: another rank is gone; if it did not say why, it was killed (out of memory?)"


def test_a_run_goes_on_without_wandb(tiny: Path, tmp_path: Path) -> None:
    """Its process is gone in the middle of the run, and what is logged afterwards reaches nobody."""
    pytest.importorskip("wandb")
    lose = {"class_path": "tests.integration.stopping.LoseWandb", "init_args": {"step": 1}}
    arguments = {"offline": True, "save_dir": str(tmp_path), "project": "test"}
    logger = {"class_path": "lightning.pytorch.loggers.WandbLogger", "init_args": arguments}
    life = begin(grpo(tiny, tmp_path / "run", trainer__logger=logger, trainer__callbacks=[lose], trainer__max_steps=4))
    assert life.end() == 0, life.log.read_text()
    assert len(rows(tmp_path / "run")) == 4
    assert (tmp_path / "run" / "hf").exists()
    assert life.log.read_text().count("WARNING: WandbLogger fails: ") == 1
