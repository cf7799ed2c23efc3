"""GSPO: the sequence's ratio by hand, its two forms, and what they have in common."""

from __future__ import annotations

import math

import pytest
import torch

from grpo_lightning.errors import UserError
from grpo_lightning.functional.masking import masked_sum
from grpo_lightning.functional.reduction import sequence_mean
from grpo_lightning.objectives import GSPO
from tests.unit.objectives.rollouts import numbers, rollout

# Token ratios 1.2 and 0.9, and a third place where nothing is trained: geometric mean sqrt(1.08) = 1.03923.
LOG_RATIOS = [[math.log(1.2), math.log(0.9), 7.0]]
OLD, MASK = [[-1.0, -2.0, -3.0]], [[1.0, 1.0, 0.0]]
RATIO = math.sqrt(1.08)


@pytest.mark.parametrize("token_gradient", [False, True])
@pytest.mark.parametrize(
    ("high", "advantage", "loss", "slope"),
    [
        (0.05, 2.0, -2 * RATIO, -2 * RATIO),  # inside: the whole sequence counts
        (0.03, 2.0, -2 * 1.03, 0.0),  # above: the whole sequence is done, its second token too, which became unlikely
        (0.03, -2.0, 2 * RATIO, 2 * RATIO),
    ],
)
def test_by_hand(token_gradient: bool, high: float, advantage: float, loss: float, slope: float) -> None:
    logprobs = (numbers(OLD) + numbers(LOG_RATIOS)).requires_grad_()
    objective = GSPO(epsilon=0.01, epsilon_high=high, token_gradient=token_gradient)
    result = objective.token_loss(logprobs, rollout([[advantage]], tokens=3, old=OLD, mask=MASK))
    assert result.values[0, :2].tolist() == pytest.approx([loss, loss])
    assert result.metrics["ratio"][0, :2].tolist() == pytest.approx([RATIO, RATIO])
    assert result.shares["clip_ratio/high_mean"][0, :2].tolist() == [float(slope == 0)] * 2
    # The first token's loss: moved by half of either token's log-probability, or by the first's alone.
    (gradient,) = torch.autograd.grad(result.values[0, 0], logprobs)
    expected = [slope, 0.0, 0.0] if token_gradient else [slope / 2, slope / 2, 0.0]
    assert gradient[0].tolist() == pytest.approx(expected)


def test_both_forms_have_one_gradient_where_tokens_share_an_advantage() -> None:
    mask = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    gradients = []
    for token_gradient in (False, True):
        logprobs = numbers([[-1.0, -2.0, -0.5], [-1.5, 0.0, 0.0]], grad=True)
        batch = rollout([[1.0], [-0.5]], tokens=3, old=[[-1.1, -2.1, -0.3], [-1.4, 0.0, 0.0]], mask=mask.tolist())
        objective = GSPO(epsilon=0.2, epsilon_high=0.2, token_gradient=token_gradient)
        weights = sequence_mean(mask, tokens=4.0, sequences=2.0, max_length=3)
        masked_sum(objective.token_loss(logprobs, batch).values, weights).backward()
        gradients.append(logprobs.grad)
    assert torch.allclose(gradients[0], gradients[1], atol=1e-15)
    # By hand: -A/2 · s / length for each token.
    first = math.exp(0.0) / 3 / 2  # log-ratios 0.1, 0.1, -0.2
    second = 0.5 * math.exp(-0.1) / 2
    assert torch.allclose(gradients[0], numbers([[-first] * 3, [second, 0.0, 0.0]]), atol=1e-15)


def test_with_an_advantage_per_token_only_the_token_form_credits_tokens() -> None:
    for token_gradient, expected in ((True, [-3.0, 1.0]), (False, [-1.0, -1.0])):
        logprobs = numbers([[-1.0, -2.0]], grad=True)
        result = GSPO(token_gradient=token_gradient).token_loss(logprobs, rollout([[3.0, -1.0]], tokens=2))
        assert result.values.tolist() == [[-3.0, 1.0]]
        result.values.sum().backward()
        assert logprobs.grad.tolist() == [expected]


def test_the_range_is_the_papers_and_wrong_ones_are_refused() -> None:
    assert (GSPO().epsilon, GSPO().epsilon_high, GSPO().delta) == (3e-4, 4e-4, None)
    with pytest.raises(UserError, match=r"^--model.objective.epsilon_high -1.0: "):
        GSPO(epsilon_high=-1.0)
    with pytest.raises(UserError, match=r"^--model.objective.delta 1.0: a ratio above 1 \+ epsilon_high \(1.0004\)"):
        GSPO(delta=1.0)
