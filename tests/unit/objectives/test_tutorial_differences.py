"""Where recipes leave their tutorials: the mended form is what runs, and the published one would give other numbers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from grpo_lightning.functional.masking import masked_sum
from grpo_lightning.functional.reduction import sequence_mean
from grpo_lightning.models.policy import Policy
from grpo_lightning.objectives import ClippedObjective
from grpo_lightning.types import RolloutBatch
from tests.unit.models.tiny import sequences, tiny_model

GRPO = ClippedObjective(epsilon=0.2, epsilon_high=0.2, beta=0.04, kl_estimator="k3", kl_ratio=False)
"""The objective of the four recipes."""


def rollout(advantages: list[float], *, old: Tensor | None = None, ref: Tensor) -> RolloutBatch:
    rows, tokens = ref.shape
    return RolloutBatch(
        input_ids=torch.zeros(rows, tokens + 1, dtype=torch.long),
        sequence_lengths=torch.full((rows,), tokens + 1),
        prompt_lengths=torch.ones(rows, dtype=torch.long),
        completion_mask=torch.ones(rows, tokens),
        advantages=torch.tensor(advantages)[:, None],
        old_logprobs=old,
        ref_logprobs=ref,
    )


def test_ratios_are_to_the_policy_that_sampled_and_not_to_the_reference() -> None:
    logprobs = torch.full((1, 2), -1.0)
    reference = logprobs - math.log(2)  # the policy is twice as sure as the reference of each token
    result = GRPO.token_loss(logprobs, rollout([1.0], old=logprobs.clone(), ref=reference))
    assert result.metrics["ratio"].tolist() == [[1.0, 1.0]]
    # The reference comes in by the KL term alone: k3 = 1/2 - log(1/2) - 1. Published: a ratio of 2, cut to 1.2.
    divergence = 0.5 + math.log(2) - 1
    assert result.values.flatten().tolist() == pytest.approx([-1.0] * 2)
    assert result.penalty.flatten().tolist() == pytest.approx([0.04 * divergence] * 2)


def test_ratios_are_each_tokens_own_and_not_the_product_over_the_sequence() -> None:
    logprobs = torch.full((1, 3), -1.0)
    old = logprobs - math.log(1.1)
    result = GRPO.token_loss(logprobs, rollout([1.0], old=old, ref=logprobs.clone()))
    # Published: 1.1 ** 3 = 1.331, cut to 1.2.
    assert result.values.flatten().tolist() == pytest.approx([-1.1] * 3)
    assert result.shares["clip_ratio/region_mean"].sum() == 0


def test_loss_and_kl_leave_the_prompt_out() -> None:
    model, batch = tiny_model(), sequences((4, 3))
    logprobs = Policy(model)(batch, temperature=1.0).logprobs
    logits = model(input_ids=batch.input_ids).logits[:, :-1]
    whole = torch.log_softmax(logits, dim=-1).gather(2, batch.input_ids[:, 1:, None]).squeeze(2)
    assert whole.shape == (1, 6)
    assert torch.allclose(logprobs, whole[:, 3:], atol=1e-5)  # published: all six


def test_a_group_is_averaged_and_not_summed() -> None:
    def loss(copies: int) -> float:
        logprobs = torch.tensor([[-1.0, -2.0], [-0.5, -3.0]]).repeat(copies, 1)
        rows = rollout([1.0, 0.5] * copies, ref=logprobs.clone())
        mask = rows.completion_mask
        weights = sequence_mean(mask, tokens=float(mask.sum()), sequences=float(len(mask)), max_length=2)
        return float(masked_sum(GRPO.token_loss(logprobs, rows).values, weights))

    assert loss(1) == pytest.approx(-0.75)
    assert loss(4) == pytest.approx(loss(1))  # published: four times as much


def test_clipping_changes_nothing_in_the_one_on_policy_step_of_a_library_without_it() -> None:
    gradients = []
    for epsilon in (1e-6, 0.2, 0.999):
        logprobs = torch.tensor([[-1.0, -2.0]], requires_grad=True)
        objective = ClippedObjective(epsilon=epsilon, epsilon_high=epsilon, beta=0.04, kl_ratio=False)
        result = objective.token_loss(logprobs, rollout([-0.7], ref=torch.tensor([[-1.5, -1.5]])))
        (result.values + result.penalty).sum().backward()
        gradients.append(logprobs.grad.tolist())
    assert gradients[0] == gradients[1] == gradients[2]
