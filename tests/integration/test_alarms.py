"""A run that has gone wrong stops, and says why; one that has not goes on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from grpo_lightning.objectives import Objective, TokenLoss
from grpo_lightning.types import RolloutBatch
from tests.integration.command_line import fit, grpo, rows, run, written

pytestmark = pytest.mark.integration

BROKEN = "tests.integration.broken_engines"
HERE = "tests.integration.test_alarms"
GAP = "sampling/logp_difference/mean"


def nothing(completions: list[Any], **_: Any) -> list[float]:
    """No completion is ever right: no group has a signal."""
    return [0.0 for _ in completions]


class NaNLoss(Objective):
    """A loss that overflows."""

    def token_loss(self, logprobs: Tensor, rollout: RolloutBatch) -> TokenLoss:
        return TokenLoss(logprobs * torch.nan, {})


class TowardsUniform(Objective):
    """Learns from every token, whatever the advantages."""

    def token_loss(self, logprobs: Tensor, rollout: RolloutBatch) -> TokenLoss:
        return TokenLoss(-0.1 * logprobs, {})


def stopped(capsys: pytest.CaptureFixture[str], config: dict[str, Any]) -> str:
    """The reason that the run gave for stopping."""
    folder = Path(config["trainer"]["default_root_dir"])
    outcome = run(capsys, "fit", "--config", written(config, folder.with_suffix(".yaml")))
    assert outcome.code == 1, outcome.err
    last = outcome.err.rstrip().splitlines()[-1]  # no traceback after it
    assert last.startswith("stopped: "), outcome.err
    return last


def test_a_sampler_with_other_weights_stops_the_run(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = grpo(tiny, tmp_path / "run", rollout__engine=f"{BROKEN}.OtherWeights")
    assert "other weights" in stopped(capsys, config)


def test_it_stops_too_where_its_rubbish_earns_no_reward(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = grpo(
        tiny, tmp_path / "run", rollout__engine=f"{BROKEN}.OtherWeights", rollout__rewards=[f"{HERE}.nothing"]
    )
    assert "other weights" in stopped(capsys, config)


def test_a_sampler_that_misses_a_sync_stops_the_run(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = grpo(tiny, tmp_path / "run", rollout__engine=f"{BROKEN}.FirstWeights", model__init_args__lr=0.1)
    assert "other weights" in stopped(capsys, config)
    assert float(rows(tmp_path / "run")[0][GAP]) < 1e-5  # the first rollout was right


def test_nan_log_probabilities_stop_the_run(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = grpo(tiny, tmp_path / "run", rollout__engine=f"{BROKEN}.NoFigures")
    assert "NaN" in stopped(capsys, config)


def test_a_sampler_that_breaks_down_is_told_of_in_one_line(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAILS", "0:error")
    config = grpo(tiny, tmp_path / "run", rollout__engine="tests.integration.failing_parts.Engine")
    line = stopped(capsys, config)
    assert (
        "stopped: the sampler (Engine) failed to generate: ValueError: x in the engine (failing_parts.py, line" in line
    )


def test_the_gap_is_logged_where_no_group_has_a_signal(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(capsys, grpo(tiny, tmp_path / "run", rollout__rewards=[f"{HERE}.nothing"]))
    for row in rows(tmp_path / "run"):
        assert float(row["skipped_steps"]) == 1
        assert 0 <= float(row[GAP]) < 1e-5


def test_cutting_the_distribution_differs_by_design(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(capsys, grpo(tiny, tmp_path / "run", rollout__top_k=3, model__init_args__correction=False))
    assert float(rows(tmp_path / "run")[0][GAP]) > 0.1


def test_nan_losses_are_skipped_and_stop_the_run_in_the_end(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = grpo(
        tiny,
        tmp_path / "run",
        model__init_args__objective=f"{HERE}.NaNLoss",
        data__prompts_per_step=2,
        trainer__max_steps=30,
    )
    assert "20 optimizer steps in a row" in stopped(capsys, config)
    assert [float(row["skipped_steps"]) for row in rows(tmp_path / "run")] == [1.0] * 19
    assert [float(row["broken_steps"]) for row in rows(tmp_path / "run")] == [float(number) for number in range(1, 20)]
    kept = {path.name: torch.load(path, weights_only=True) for path in (tmp_path / "run" / "broken").iterdir()}
    assert sorted(kept) == [f"step{step}.pt" for step in range(1, 6)]  # no more: a disk is not to be filled
    batch = kept["step1.pt"]
    assert (batch["step"], batch["rank"]) == (1, 0)
    assert math.isnan(batch["loss"])
    assert math.isnan(batch["figures"]["grad_norm"])
    tensors = batch["micro_batches"][0]
    assert tensors["input_ids"].shape[0] == tensors["advantages"].shape[0] > 0
    assert tensors["completion_mask"].sum() > 0


def test_an_objective_with_another_gradient_keeps_every_row(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = grpo(tiny, tmp_path / "run", rollout__rewards=[f"{HERE}.nothing"])
    fit(capsys, config, "--model.objective", f"{HERE}.TowardsUniform")
    for row in rows(tmp_path / "run"):
        assert float(row["grad_norm"]) > 0
        assert float(row["skipped_steps"]) == 0
