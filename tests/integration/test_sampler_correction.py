"""A sampler that is a little off: what its correction does to a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.command_line import fit, grpo, rows, run, written

pytestmark = pytest.mark.integration

OUTSIDE, RATIO = "sampling/out_of_bounds", "sampling/importance_sampling_ratio"


def _step(folder: Path, tiny: Path, capsys: pytest.CaptureFixture[str], **options: Any) -> dict[str, float]:
    """Figures of one step on the same samples, whatever the options of the module."""
    engine = "tests.integration.broken_engines.NearbyWeights"
    config = grpo(tiny, folder, rollout__engine=engine, trainer__max_steps=1)
    config["model"]["init_args"] |= options
    fit(capsys, config)
    (row,) = rows(folder)
    return {name: float(value) for name, value in row.items() if value}


def test_figures_move_and_gradients_are_weighted(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    off = _step(tmp_path / "off", tiny, capsys, correction=False)
    assert not any(name.startswith((OUTSIDE, RATIO)) for name in off)
    assert off["sampling/kl_k3"] > 1e-4
    assert 0 < off["sampling/logp_difference/mean"] < 0.1

    # By default a token's ratio; here none reaches 2. The mask takes what has become unlikely and was bad.
    on = _step(tmp_path / "on", tiny, capsys, off_policy_threshold=0.001)
    assert on[f"{OUTSIDE}/tokens"] == 0
    assert 0.8 < on[f"{RATIO}/min"] < on[f"{RATIO}/mean"] < on[f"{RATIO}/max"] < 1.25
    assert 0.9 < on["sampling/effective_sample_size"] < 1
    assert 0 < on["sampling/off_policy/tokens"] < 1
    assert on["grad_norm"] != off["grad_norm"]

    # A mask that spares nothing leaves no gradient.
    correction = {
        "class_path": "grpo_lightning.rollout.sampler_correction.SamplerCorrection",
        "init_args": {"action": "mask", "lower": 1.0, "upper": 1.0},
    }
    nothing = _step(tmp_path / "nothing", tiny, capsys, correction=correction)
    assert (nothing["loss"], nothing["grad_norm"]) == (0, 0)
    assert nothing[f"{OUTSIDE}/tokens"] == nothing[f"{OUTSIDE}/sequences"] == 1
    # Nearly every completion here stops at the length limit.
    assert nothing[f"{OUTSIDE}/tokens_quartile_4"] == nothing[f"{OUTSIDE}/sequences_quartile_4"] == 1
    assert nothing[f"{RATIO}/max"] == nothing["sampling/effective_sample_size"] == 0


def test_a_cut_distribution_is_refused_by_default(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = grpo(tiny, tmp_path / "run", rollout__top_p=0.9)
    mistake = run(capsys, "fit", "--config", written(config, tmp_path / "run.yaml")).mistake
    assert "--rollout.top_p 0.9" in mistake
    assert mistake.endswith("set --rollout.top_p 1, or --model.correction false")
