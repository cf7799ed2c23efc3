"""CISPO: weights by hand, with and without a lower bound, and where other projects' numbers lie."""

from __future__ import annotations

import math
from typing import Any

import pytest

from grpo_lightning.errors import UserError
from grpo_lightning.objectives import CISPO
from tests.unit.objectives.rollouts import numbers, rollout


@pytest.mark.parametrize(
    ("options", "ratio", "weight"),
    [
        ({"epsilon": 0.2, "epsilon_high": 0.28}, 0.5, 0.8),
        ({"epsilon": 0.2, "epsilon_high": 0.28}, 1.1, 1.1),
        ({"epsilon": 0.2, "epsilon_high": 0.28}, 3.0, 1.28),
        ({"epsilon_high": 0.28}, 0.5, 0.5),
        ({}, 4.9, 4.9),
        ({}, 5.1, 5.0),  # TRL's epsilon_high=5.0
    ],
)
@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_by_hand(options: dict[str, Any], ratio: float, weight: float, advantage: float) -> None:
    logprobs = numbers([[-3.0]], grad=True)
    result = CISPO(**options).token_loss(logprobs, rollout([[advantage]], old=[[-3.0 - math.log(ratio)]]))
    result.values.sum().backward()
    assert result.values.item() == pytest.approx(-weight * advantage * -3.0)
    assert logprobs.grad.item() == pytest.approx(-weight * advantage)  # never 0: a bounded token still counts
    assert result.metrics["ratio"].item() == pytest.approx(ratio)
    assert result.shares["cispo_clip_ratio"].item() == float(weight < ratio and advantage > 0)


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"epsilon": 0.0}, "epsilon 0.0"),
        ({"epsilon": 1.0}, "epsilon 1.0"),
        ({"epsilon_high": 0.0}, "epsilon_high 0.0"),
        ({"epsilon_high": -0.8}, "epsilon_high -0.8"),
    ],
)
def test_wrong_settings_are_refused_by_name(options: dict[str, float], flag: str) -> None:
    with pytest.raises(UserError, match=f"^--model.objective.{flag}: "):
        CISPO(**options)
