"""What a run logs, where, and under which names."""

from __future__ import annotations

from pathlib import Path

import lightning as L
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.integration.command_line import REWARDS, fit, grpo, rows
from tests.integration.recorded_rollout import replay
from tests.unit.models.tiny import tiny_model, tiny_tokenizer

pytestmark = pytest.mark.integration

NAMES = {  # as TRL's users know them
    "reward",
    "reward_std",
    "frac_reward_zero_std",
    "rewards/share_of_digits/mean",
    "rewards/share_of_digits/std",
    "completions/mean_length",
    "completions/min_length",
    "completions/max_length",
    "completions/clipped_ratio",
    "completions/mean_terminated_length",
    "completions/min_terminated_length",
    "completions/max_terminated_length",
    "sampling/logp_difference/mean",
    "sampling/logp_difference/max",
    "entropy",
    "clip_ratio/low_mean",
    "clip_ratio/high_mean",
    "clip_ratio/region_mean",
    "num_tokens",
    "loss",
    "grad_norm",
    "learning_rate",
}


def test_one_row_for_each_optimizer_step(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two rollouts of 2 passes x 2 windows: eight steps; what belongs to a rollout stands in its first step's row."""
    config = grpo(tiny, tmp_path / "run", rollout__passes=2, rollout__updates_per_rollout=2, trainer__max_steps=8)
    config["model"]["init_args"]["objective"] = {
        "class_path": "grpo_lightning.objectives.ClippedObjective",
        "init_args": {"beta": 0.1},
    }
    fit(capsys, config)
    table = rows(tmp_path / "run")
    assert [int(row["step"]) for row in table] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert {*NAMES, "kl"} <= table[0].keys()
    for name in ("loss", "entropy", "grad_norm", "learning_rate", "kl", "clip_ratio/region_mean"):
        assert all(row[name] for row in table), name
    for name in ("reward", "num_tokens", "completions/mean_length", "time/generate"):
        assert [bool(row[name]) for row in table] == [True, False, False, False] * 2, name
    # At the first step of the first rollout policy, sampler and reference are one.
    assert float(table[0]["kl"]) == 0.0
    assert float(table[1]["kl"]) > 0.0

    board = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    board.Reload()
    assert set(board.Tags()["scalars"]) >= NAMES
    losses = [(event.step, event.value) for event in board.Scalars("loss")]
    assert losses == [(int(row["step"]), pytest.approx(float(row["loss"]), rel=1e-5)) for row in table]
    assert [event.step for event in board.Scalars("reward")] == [1, 5]


def test_callbacks_see_every_figure_of_the_latest_step(tmp_path: Path) -> None:
    """As early stopping and ``ModelCheckpoint(monitor=...)`` look them up, in the middle of an epoch."""

    class Watch(L.Callback):
        def __init__(self) -> None:
            self.seen: list[dict[str, float]] = []

        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
            self.seen.append({name: float(value) for name, value in trainer.callback_metrics.items()})

    tiny_model("Llama").save_pretrained(tmp_path / "policy")
    tiny_tokenizer().save_pretrained(tmp_path / "policy")
    watch = Watch()
    module, trainer, _ = replay(str(tmp_path / "policy"), tmp_path, rollouts=2, passes=2, callbacks=(watch,))
    assert len(module.steps) == 4
    for seen, latest in zip(watch.seen, module.steps[1::2], strict=True):
        assert {name: seen[name] for name in latest} == pytest.approx(latest, rel=1e-6)
        assert seen["rollout/figure"] == 1.0  # of the rollout's first step
    assert watch.seen[0]["loss"] != watch.seen[1]["loss"]
    assert float(trainer.callback_metrics["grad_norm"]) == pytest.approx(module.steps[-1]["grad_norm"])


def test_micro_batches_make_no_rows(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, split = (grpo(tiny, tmp_path / name) for name in ("whole", "split"))
    split["rollout"]["micro_batch_tokens"] = 80
    for config in (whole, split):
        fit(capsys, config)
    one, other = rows(tmp_path / "whole"), rows(tmp_path / "split")
    assert [row["step"] for row in one] == [row["step"] for row in other] == ["1", "2"]
    for name in ("loss", "entropy", "grad_norm", "reward", "sampling/logp_difference/max"):
        for row, again in zip(one, other, strict=True):
            assert float(again[name]) == pytest.approx(float(row[name]), rel=1e-4, abs=1e-6), name


def test_max_steps_counts_optimizer_steps(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """3 steps with several micro-batches: 3 updates, 3 moves of the schedule, whatever the split."""
    config = grpo(tiny, tmp_path / "run", trainer__max_steps=3, rollout__passes=3, rollout__micro_batch_tokens=80)
    config["model"]["init_args"] |= {"lr_scheduler_type": "linear", "lr": 3e-3}
    fit(capsys, config)
    table = rows(tmp_path / "run")
    assert [int(row["step"]) for row in table] == [1, 2, 3]
    assert [float(row["learning_rate"]) for row in table] == pytest.approx([3e-3, 2e-3, 1e-3])


def test_epochs_end_with_whole_rollouts(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """18 prompts, 4 a rollout, 2 epochs: 8 rollouts; the two that are left over are told."""
    config = grpo(tiny, tmp_path / "run", data__source__init_args__size=18)
    config["trainer"] |= {"max_steps": -1, "max_epochs": 2}
    outcome = fit(capsys, config)
    assert [int(row["step"]) for row in rows(tmp_path / "run")] == list(range(1, 9))
    assert "2 of 18 prompts do not fill a batch" in outcome.err


def test_wandb_by_configuration(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wandb = pytest.importorskip("wandb")
    logger = {
        "class_path": "lightning.pytorch.loggers.WandbLogger",
        "init_args": {"offline": True, "save_dir": str(tmp_path / "wandb"), "project": "test"},
    }
    fit(capsys, grpo(tiny, tmp_path / "run", trainer__logger=logger))
    wandb.finish()  # its own process writes, when it finds the time
    assert [row["step"] for row in rows(tmp_path / "run")] == ["1", "2"]
    assert list((tmp_path / "run" / "checkpoints").glob("*.ckpt"))
    assert list((tmp_path / "wandb").rglob("*.wandb"))
    assert not (tmp_path / "run" / "tensorboard").exists()


def test_no_logger(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit(capsys, grpo(tiny, tmp_path / "run", trainer__logger=False, rollout__rewards=[f"{REWARDS}.never"]))
    assert not (tmp_path / "run" / "metrics.csv").exists()
    assert (tmp_path / "run" / "hf" / "model.safetensors").exists()
