"""The published objectives, each put on a config by one more ``--config``, train: several steps a rollout.

Left out: grpo, r1 and dr_grpo, which set other values of what is trained everywhere.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.integration.command_line import fit, grpo, rows
from tests.integration.stand_ins import CONFIGS

pytestmark = pytest.mark.integration

CLIP = {"clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean"}
LOGGED: dict[str, set[str]] = {
    "dapo": CLIP,
    "gspo": CLIP,
    "luspo": CLIP,
    "cispo": {"cispo_clip_ratio"},
    "sapo": {"sapo/gate_mean"},
    "gmpo": CLIP,
    "vespo": {"vespo/phi_seq_mean"},
    "rloo": CLIP | {"kl", "kl_sequence"},
    "reinforce_pp": CLIP | {"kl", "kl_sequence"},
}


@pytest.mark.parametrize("name", LOGGED)
def test_trains(name: str, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps_per_rollout = {"rollout__updates_per_rollout": 2, "rollout__passes": 2, "trainer__max_steps": 4}
    folder = tmp_path / "run"
    config = grpo(tiny, folder, model__init_args__lr=1e-2, **steps_per_rollout)
    fit(capsys, config, "--config", str(CONFIGS / "objective" / f"{name}.yaml"))
    steps = rows(folder)
    assert len(steps) == 4
    for step in steps:
        assert all(math.isfinite(float(step[figure])) for figure in {"loss", "ratio", "grad_norm", *LOGGED[name]})
    assert ("rollout/tries" in steps[0]) == (name == "dapo")
    assert float(steps[0]["ratio"]) == pytest.approx(1.0, abs=1e-4)
    assert float(steps[-1]["ratio"]) != pytest.approx(1.0, abs=1e-4)
