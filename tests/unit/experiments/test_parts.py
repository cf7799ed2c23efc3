"""What single experiments add of their own."""

from __future__ import annotations

import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from experiments import sweep
from experiments.passes.ratio_spread import RatioSpread
from experiments.plain_form.plain import PlainPolicy
from experiments.random_rewards.rewards import coin_toss
from grpo_lightning.models.policy import Policy
from tests.unit.experiments.test_figures_of_runs import made
from tests.unit.models.tiny import sequences, tiny_model
from tests.unit.objectives.rollouts import numbers, rollout

EXPERIMENTS = Path(__file__).resolve().parents[3] / "experiments"


def tossed(completions: list[str], step: int = 0) -> list[float]:
    return coin_toss(completions, trainer_state=SimpleNamespace(global_step=step))


def test_a_coin_is_fair_and_blind() -> None:
    same = tossed(["#### 7"] * 4000)
    assert set(same) == {0.0, 1.0}
    assert sum(same) / 4000 == pytest.approx(0.5, abs=0.03)  # nearly four standard errors
    assert same == tossed(["#### 7"] * 4000)
    later = tossed(["#### 7"] * 4000, step=1)
    assert sum(a == b for a, b in zip(same, later, strict=True)) / 4000 == pytest.approx(0.5, abs=0.03)


def test_the_distance_of_ratios_is_logged_and_changes_no_loss() -> None:
    batch = rollout([[1.0], [-1.0]], tokens=2, old=[[0.0, 0.0], [0.0, 0.0]])
    loss = RatioSpread().token_loss(numbers([[0.0, math.log(1.1)], [math.log(0.7), 0.0]]), batch)
    assert loss.metrics["ratio_distance"].flatten().tolist() == pytest.approx([0.0, 0.1, 0.3, 0.0])
    assert loss.values.flatten().tolist() == pytest.approx([-1.0, -1.1, 0.8, 1.0])  # clipped at 0.8


def test_the_experiment_of_the_page_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def pretend(name: str, settings: dict[str, str], **more: Any) -> list[sweep.Run]:
        asked.update(name=name, settings=settings, **more)
        return [made([0.85] * 6, setting=setting, seed=seed) for setting in settings for seed in (0, 1)]

    monkeypatch.setattr(sweep, "run_sweep", pretend)
    (tmp_path / "README.md").write_text("<!-- table -->\n<!-- end of table -->\n")
    (code,) = re.findall(r"```python\n(.*?)```", (EXPERIMENTS / "README.md").read_text("utf-8"), flags=re.DOTALL)
    exec(code, {"__name__": "__main__", "__file__": str(tmp_path / "run.py")})
    assert asked["settings"]["lr 1e-5"] == "--model.lr 1e-5"
    assert "| lr 3e-5 | 5 ± 0 |" in (tmp_path / "README.md").read_text("utf-8")
    assert (tmp_path / "plot.png").exists()


def test_the_page_names_every_experiment() -> None:
    page = (EXPERIMENTS / "README.md").read_text("utf-8")
    for folder in EXPERIMENTS.glob("*/README.md"):
        assert f"]({folder.parent.name}/)" in page


def test_the_plain_form_scores_the_same() -> None:
    model, batch = tiny_model("Qwen2"), sequences((5, 4), (2, 7), (9, 1))
    batch.completion_mask[1, 2] = 0.0
    results = []
    for policy in (Policy(model, packing=True), PlainPolicy(model)):
        scores = policy(batch, temperature=0.7)
        gradients = torch.autograd.grad((scores.logprobs - 0.1 * scores.entropy).sum(), list(model.parameters()))
        results.append([scores.logprobs, scores.entropy, *gradients])
    for ours, plain in zip(*results, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5)
