"""GMPO: clip each log-ratio on its own side, then the geometric mean, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from grpo_lightning.errors import UserError
from grpo_lightning.objectives import GMPO
from tests.unit.objectives.rollouts import numbers, rollout

LOG_RATIOS = [[0.9, -0.7, 0.1, 8.0]]  # the last is not trained
OLD, MASK = [[-1.0, -2.0, -3.0, -4.0]], [[1.0, 1.0, 1.0, 0.0]]


@pytest.mark.parametrize(
    ("advantage", "clipped", "counts", "low", "high"),
    [
        # A good answer: what became likelier is cut at 0.4, what became unlikelier is not.
        (2.0, [0.4, -0.7, 0.1], [0, 1, 1], [0, 0, 0], [1, 0, 0]),
        # A bad one: the other way round, cut at -0.3.
        (-2.0, [0.9, -0.3, 0.1], [1, 0, 1], [0, 1, 0], [0, 0, 0]),
    ],
)
def test_by_hand(advantage: float, clipped: list[float], counts: list[int], low: list[int], high: list[int]) -> None:
    logprobs = (numbers(OLD) + numbers(LOG_RATIOS)).requires_grad_()
    objective = GMPO(epsilon=0.3, epsilon_high=0.4)
    result = objective.token_loss(logprobs, rollout([[advantage]], tokens=4, old=OLD, mask=MASK))
    ratio = math.exp(sum(clipped) / 3)
    assert result.values[0, :3].tolist() == pytest.approx([-ratio * advantage] * 3)
    assert result.metrics["ratio"][0, :3].tolist() == pytest.approx([ratio] * 3)
    assert result.shares["clip_ratio/low_mean"][0, :3].tolist() == low
    assert result.shares["clip_ratio/high_mean"][0, :3].tolist() == high
    (gradient,) = torch.autograd.grad(result.values[0, 0], logprobs)
    # A clipped token has no gradient of its own, but still moves what the others count.
    assert gradient[0].tolist() == pytest.approx([-ratio * advantage / 3 * count for count in counts] + [0.0])


def test_on_policy_it_is_the_mean_over_tokens() -> None:
    logprobs = numbers([[-1.0, -2.0]], grad=True)
    values = GMPO().token_loss(logprobs, rollout([[3.0]], tokens=2)).values
    assert values.tolist() == [[-3.0, -3.0]]
    values[0, 0].backward()
    assert logprobs.grad.tolist() == [[-1.5, -1.5]]


@pytest.mark.parametrize("name", ["epsilon", "epsilon_high"])
def test_wrong_settings_are_refused_by_name(name: str) -> None:
    assert getattr(GMPO(), name) == 0.4
    with pytest.raises(UserError, match=f"^--model.objective.{name} 0.0: "):
        GMPO(**{name: 0.0})
