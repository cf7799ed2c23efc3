"""VESPO: the weight of a sequence by hand, against the old policy and against the sampler."""

from __future__ import annotations

import math

import pytest
import torch

from grpo_lightning.errors import UserError
from grpo_lightning.objectives import VESPO
from tests.unit.objectives.rollouts import numbers, rollout


@pytest.mark.parametrize(
    ("weight", "advantage", "phi"),
    [
        (1.0, 1.5, 1.0),
        (2.0, 1.5, 4 * math.exp(-3)),  # k 2, λ 3
        (0.5, 1.5, 0.25 * math.exp(1.5)),
        (2.0, -1.5, 8 * math.exp(-2)),  # k 3, λ 2
        (0.5, -1.5, 0.125 * math.exp(1.0)),
    ],
)
def test_by_hand(weight: float, advantage: float, phi: float) -> None:
    # The sequence's ratio is the product of its tokens': 4 times weight / 4.
    old = [[-1.0 - math.log(4), -2.0 - math.log(weight / 4), 9.0]]
    logprobs = numbers([[-1.0, -2.0, -7.0]], grad=True)
    result = VESPO().token_loss(logprobs, rollout([[advantage]], tokens=3, old=old, mask=[[1.0, 1.0, 0.0]]))
    result.values.sum().backward()
    assert result.values[0, :2].tolist() == pytest.approx([phi * advantage, 2 * phi * advantage])
    assert logprobs.grad[0].tolist() == pytest.approx([-phi * advantage, -phi * advantage, 0.0])
    assert result.metrics["vespo/phi_seq_mean"][0, 0].item() == pytest.approx(phi)
    assert result.metrics["ratio"][0, 0].item() == pytest.approx(weight)


def test_the_ratio_is_to_the_sampler_where_it_is_known() -> None:
    batch = rollout([[1.0]], tokens=2, old=[[-1.5, -2.5]], sampling=[[-1.0, -2.0 + math.log(2)]])
    result = VESPO().token_loss(numbers([[-1.0, -2.0]]), batch)
    assert result.metrics["ratio"].tolist() == [pytest.approx([0.5, 0.5])]
    assert VESPO().corrects_sampler


def test_the_weight_is_greatest_where_k_over_lambda_says() -> None:
    weights = torch.linspace(0.05, 4, 80, dtype=torch.float64)
    for advantage, top in ((1.0, 2 / 3), (-1.0, 3 / 2)):
        batch = rollout([[advantage]] * 80, old=(-1 - weights.log())[:, None].tolist())
        phi = VESPO().token_loss(torch.full((80, 1), -1.0).double(), batch).metrics["vespo/phi_seq_mean"]
        assert weights[phi.argmax()].item() == pytest.approx(top, abs=0.03)


@pytest.mark.parametrize("name", ["k_pos", "lambda_pos", "k_neg", "lambda_neg"])
def test_wrong_settings_are_refused_by_name(name: str) -> None:
    with pytest.raises(UserError, match=f"^--model.objective.{name} 0.0: "):
        VESPO(**{name: 0.0})
