"""SAPO: the gate by hand on both sides of the ratio and of the advantage."""

from __future__ import annotations

import math

import pytest

from grpo_lightning.errors import UserError
from grpo_lightning.objectives import SAPO
from tests.unit.objectives.rollouts import numbers, rollout


@pytest.mark.parametrize(
    ("ratio", "advantage", "temperature"), [(1.0, 2.0, 1.0), (1.5, 2.0, 1.0), (0.5, -2.0, 1.05), (3.0, -1.0, 1.05)]
)
def test_by_hand(ratio: float, advantage: float, temperature: float) -> None:
    logprobs = numbers([[math.log(ratio) - 3]], grad=True)
    result = SAPO().token_loss(logprobs, rollout([[advantage]], old=[[-3.0]]))
    result.values.sum().backward()
    gate = 1 / (1 + math.exp(-temperature * (ratio - 1)))
    weight = 4 * gate * (1 - gate)
    assert result.values.item() == pytest.approx(-4 / temperature * gate * advantage, abs=1e-12)
    assert logprobs.grad.item() == pytest.approx(-weight * ratio * advantage, abs=1e-12)
    assert result.metrics["sapo/gate_mean"].item() == pytest.approx(weight, abs=1e-12)
    assert result.metrics["ratio"].item() == pytest.approx(ratio)


def test_some_numbers_to_hold_on_to() -> None:
    logprobs = numbers([[-1.0, -1.0, math.log(2.0) - 1]], grad=True)
    batch = rollout([[1.0, -1.0, 1.0]], tokens=3, old=[[-1.0, -1.0, -1.0]])
    result = SAPO().token_loss(logprobs, batch)
    result.values.sum().backward()
    assert result.values[0].tolist() == pytest.approx([-2.0, 1.904762, -2.924234], abs=1e-6)  # 2/1.05; 4 · 0.731059
    assert logprobs.grad[0].tolist() == pytest.approx([-1.0, 1.0, -1.572896], abs=1e-6)  # 2 · 0.786448


@pytest.mark.parametrize("name", ["temperature_pos", "temperature_neg"])
def test_wrong_settings_are_refused_by_name(name: str) -> None:
    with pytest.raises(UserError, match=f"^--model.objective.{name} 0.0: "):
        SAPO(**{name: 0.0})
