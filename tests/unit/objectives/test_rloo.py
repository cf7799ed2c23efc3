"""RLOO: the product of a sequence's ratios by hand, and REINFORCE on policy."""

from __future__ import annotations

import math

import pytest
import torch

from grpo_lightning.functional.masking import masked_sum
from grpo_lightning.functional.reduction import sequence_mean, sequence_sum
from grpo_lightning.objectives import RLOO, Reinforce
from tests.unit.objectives.rollouts import numbers, rollout

OLD, MASK = [[-1.0, -2.0, -3.0]], [[1.0, 1.0, 0.0]]


@pytest.mark.parametrize(
    ("ratios", "advantage", "loss", "slope", "clipped"),
    [
        ((1.2, 0.9), 2.0, -2 * 1.08, -2 * 1.08, [0, 0]),
        ((1.1, 1.15), 2.0, -2 * 1.2, 0.0, [0, 1]),  # 1.265, though each token is inside
        ((1.1, 1.15), -2.0, 2 * 1.265, 2 * 1.265, [0, 0]),
        ((0.9, 0.8), -2.0, 2 * 0.8, 0.0, [1, 0]),  # 0.72
    ],
)
def test_by_hand(ratios: tuple[float, float], advantage: float, loss: float, slope: float, clipped: list[int]) -> None:
    logprobs = numbers([[math.log(ratios[0]) - 1, math.log(ratios[1]) - 2, 5.0]], grad=True)
    result = RLOO().token_loss(logprobs, rollout([[advantage]], tokens=3, old=OLD, mask=MASK))
    assert result.values[0, :2].tolist() == pytest.approx([loss, loss])
    assert result.metrics["ratio"][0, 0].item() == pytest.approx(ratios[0] * ratios[1])
    shares = [result.shares[f"clip_ratio/{side}_mean"][0, 0].item() for side in ("low", "high")]
    assert shares == clipped
    (gradient,) = torch.autograd.grad(result.values[0, 0], logprobs)
    assert gradient[0].tolist() == pytest.approx([slope, slope, 0.0])


def test_on_policy_it_is_reinforce_with_the_sum_over_tokens() -> None:
    mask = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    totals = {"tokens": 4.0, "sequences": 2.0, "max_length": 3}
    gradients = []
    for objective, reduction in ((RLOO(), sequence_mean), (Reinforce(), sequence_sum)):
        logprobs = numbers([[-1.0, -2.0, -0.5], [-1.5, 0.0, 0.0]], grad=True)
        batch = rollout([[1.5], [-0.5]], tokens=3, mask=mask.tolist())
        masked_sum(objective.token_loss(logprobs, batch).values, reduction(mask, **totals)).backward()
        gradients.append(logprobs.grad)
    for gradient in gradients:
        assert torch.allclose(gradient, numbers([[-0.75] * 3, [0.25, 0.0, 0.0]]), atol=1e-7)  # weights are float32


def test_a_product_of_many_ratios_stays_finite() -> None:
    logprobs = torch.full((1, 500), -1.0, requires_grad=True)
    batch = rollout([[-1.0]], tokens=500, old=[[-1.5] * 500])
    batch.advantages, batch.old_logprobs = batch.advantages.float(), batch.old_logprobs.float()
    values = RLOO().token_loss(logprobs, batch).values  # e^250 is more than float32 holds
    values.sum().backward()
    assert values[0, 0].item() == pytest.approx(math.exp(20))
    assert logprobs.grad.abs().max().item() == 0.0
