"""A run that is killed again and again at random moments ends as the one that never was, to the last bit.

And two faults more that are cheap to try here.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from grpo_lightning.callbacks.checkpoint import read_header
from grpo_lightning.interruption import SAME_SECONDS
from tests.integration.command_line import grpo, rows, totals
from tests.integration.kill_parts import SLOW_FROM, Refused, slowly
from tests.integration.kills import CODES, KINDS, Chain, Life, begin, steps_to_strike, wait
from tests.integration.resuming import SHARDED, differences

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


def test_under_fsdp2(tiny: Path, tmp_path: Path) -> None:
    """With its checkpoints in one file and in shards by turns: either form goes on from the other."""
    arguments = {"ranks": 2, "strategy": "fsdp2"}
    whole = begin(steps_to_strike(tiny, tmp_path / "whole", trainer__max_epochs=3), **arguments)
    assert whole.end() == 0, whole.log.read_text()[-4000:]
    chain = Chain(steps_to_strike(tiny, tmp_path / "run", trainer__max_epochs=3), seed=70, **arguments)
    chain.strike("kill while saving")  # at its second, which has taken its place
    chain.strategy = SHARDED
    for kind in ("SIGTERM", "kill while saving", "full disk"):  # half-way through a shard
        chain.strike(kind)
    chain.strategy = "fsdp2"
    chain.finish()
    assert chain.differences(tmp_path / "whole") == []


def slow(tiny: Path, folder: Path, grace: float) -> dict[str, Any]:
    """A run whose third rollout would take ten minutes, and that has as many seconds to end in; few checkpoints."""
    stop = {"class_path": "grpo_lightning.callbacks.stop_signal.StopOnSignal", "init_args": {"grace_seconds": grace}}
    return steps_to_strike(
        tiny, folder, rollout__engine="tests.integration.kill_parts.SlowEngine", trainer__callbacks=[stop]
    )


def test_a_rollout_that_takes_too_long_is_given_up_and_the_one_before_is_saved(
    tiny: Path, tmp_path: Path, straight: dict[int, Path]
) -> None:
    """On one rank and on two, at the same time; each gets the signal twice at once, as from coreutils' ``timeout``."""
    configs = {ranks: slow(tiny, tmp_path / str(ranks), grace=3) for ranks in (1, 2)}
    lives = {ranks: begin(config, ranks=ranks) for ranks, config in configs.items()}
    for life in lives.values():
        _samples_for_long(life)
    since = time.monotonic()
    for life in [*lives.values(), *lives.values()]:
        life.signal(signal.SIGTERM)
    for ranks, life in lives.items():
        assert life.end() == 143, life.log.read_text()
        assert time.monotonic() - since < 5
        said = life.log.read_text()
        assert said.count("SIGTERM: stopping after this rollout, in 3 s at most") == 1
        assert "go on with --ckpt_path last, from step 2" in said
        assert "Traceback" not in said
        assert Chain(configs[ranks], ranks=ranks, seed=0).newest() == 2
    config = steps_to_strike(tiny, tmp_path / "2", trainer__callbacks=[])
    assert begin(config, "--ckpt_path=last", ranks=2).end(300) == 0
    assert differences(straight[2], tmp_path / "2") == []


def _samples_for_long(life: Life) -> None:
    run = life.log.with_suffix("")
    wait(life, lambda: (run / "metrics.csv").exists() and len(rows(run)) == 2)
    time.sleep(0.3)


def test_a_second_ctrl_c_ends_a_run_at_once(tiny: Path, tmp_path: Path) -> None:
    life = begin(slow(tiny, tmp_path / "run", grace=60))
    _samples_for_long(life)
    life.signal(signal.SIGINT)
    wait(life, lambda: "Ctrl-C: stopping after this rollout" in life.log.read_text())
    time.sleep(SAME_SECONDS + 0.05)
    assert not life.over
    since = time.monotonic()
    life.signal(signal.SIGINT)
    assert life.end() == 130
    assert time.monotonic() - since < 3
    assert "stopped: by Ctrl-C; ended at once; there is no checkpoint to go on from" in life.log.read_text()


def terminated(tiny: Path, folder: Path, *, own: dict[str, Any], **options: Any) -> dict[str, Any]:
    """A run of which the first rank gets SIGTERM after the third step or in it."""
    stop = {"class_path": "tests.integration.stopping.Terminate", "init_args": {"step": 3, **options}}
    return steps_to_strike(tiny, folder, trainer__callbacks=[own, stop])


def saves(every: int) -> dict[str, Any]:
    return {
        "class_path": "grpo_lightning.callbacks.checkpoint.RunCheckpoint",
        "init_args": {"every_n_rollouts": every},
    }


def test_the_others_wait_until_the_first_rank_has_saved_one_file(tiny: Path, tmp_path: Path) -> None:
    """Between two rollouts; they have no signal of their own, and what started them would take them for failed."""
    life = begin(terminated(tiny, tmp_path / "run", own=saves(2)), ranks=2, save=slowly)
    checkpoints = tmp_path / "run" / "checkpoints"
    life.ranks[1].join(60)
    there = (checkpoints / "step3.ckpt").exists()
    assert life.end() == 143, life.log.read_text()
    assert there, "the second rank had gone before"
    assert life.ranks[1].exitcode == 0
    assert sorted(path.name for path in checkpoints.iterdir()) == ["last.ckpt", "step3.ckpt"]
    header = read_header(checkpoints / "step3.ckpt")
    assert header is not None
    (state,) = (state for state in header.callbacks.values() if "best_model_path" in state)
    assert [Path(state[name]).name for name in ("best_model_path", "last_model_path")] == ["step3.ckpt", "last.ckpt"]


def test_two_runs_at_once_in_one_folder(tiny: Path, tmp_path: Path) -> None:
    """The second is refused and moves nothing; once the first is killed, its folder is free at once."""
    config = steps_to_strike(tiny, tmp_path / "run")
    first = begin(config, variables={SLOW_FROM: "2"})
    wait(first, lambda: any((tmp_path / "run" / "checkpoints").glob("*.ckpt")))
    second = begin(config)
    assert second.end() == 2
    assert f"is in use by process {first.ranks[0].pid} on " in second.log.read_text()
    assert not first.over
    first.signal(signal.SIGKILL)
    third = begin(config, "--ckpt_path=last")
    assert first.end() == CODES["SIGKILL"]
    assert third.end() == 0, third.log.read_text()[-4000:]
    assert not any((tmp_path / "run").glob("previous-*"))


def test_what_a_run_really_goes_on_from(tiny: Path, tmp_path: Path) -> None:
    """Its last checkpoint is refused by the disk, where a signal ends it and where it ends; or would lie elsewhere."""
    remote = {"class_path": "lightning.pytorch.callbacks.ModelCheckpoint", "init_args": {"dirpath": "memory://x"}}
    ends = steps_to_strike(tiny, tmp_path / "ended", trainer__callbacks=[saves(1)], trainer__max_steps=3)
    lives = {
        "stopped": begin(terminated(tiny, tmp_path / "stopped", own=saves(1), stepping=True), save=Refused(2)),
        "ended": begin(ends, save=Refused(2)),
        "remote": begin(terminated(tiny, tmp_path / "remote", own=remote)),
    }
    codes = {name: life.end() for name, life in lives.items()}
    said = {name: life.log.read_text() for name, life in lives.items()}
    assert codes == {"stopped": 143, "ended": 1, "remote": 143}, said
    assert "stopping by SIGTERM after step 3; go on with --ckpt_path last, from step 2" in said["stopped"]
    lost = "WARNING: the run ends after step 3 without its last checkpoint, which could not be written; go on with"
    assert f"{lost} --ckpt_path last, from step 2" in said["ended"]
    assert "stopping by SIGTERM; go on with --ckpt_path last, from step 3" in said["remote"]
    assert "Traceback" not in said["remote"]


def test_the_second_rank_fails_by_itself(tiny: Path, tmp_path: Path) -> None:
    """In its data, in a reward's own process, or in the rule of an evaluation. Nobody ends the first, which waits."""
    parts = "tests.integration.failing_parts"
    judged = {"data__eval_sources": [totals("eval", 4) | {"class_path": f"{parts}.Judged"}]}
    judged |= {"trainer__limit_val_batches": 1.0, "trainer__val_check_interval": 1}
    changes = {
        "data": {"data__source": f"{parts}.Data"},
        "reward apart": {"rollout__rewards": [f"{parts}.reward_apart"]},
        "rule": judged,
    }
    lives = {
        where: begin(grpo(tiny, tmp_path / where, **change), ranks=2, variables={"FAILS": "1:error"})
        for where, change in changes.items()
    }
    for where, life in lives.items():
        assert life.end() == 1, where
        said = life.log.read_text()
        assert f"ValueError: x in the {where}" in said
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
