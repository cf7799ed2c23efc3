"""LUSPO: GSPO's loss of a sequence, times its length."""

from __future__ import annotations

import math

import pytest
import torch

from grpo_lightning.functional.masking import masked_sum
from grpo_lightning.functional.reduction import sequence_mean, sequence_sum
from grpo_lightning.objectives import GSPO, LUSPO
from tests.unit.objectives.rollouts import numbers, rollout


def test_each_sequence_counts_by_its_length() -> None:
    mask = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    logprobs = numbers([[-1.0, -2.0, -0.5], [-1.5, 0.0, 0.0]], grad=True)
    old = [[-1.1, -2.1, -0.4], [-1.4, 0.0, 0.0]]  # geometric ratios exp(0.1 / 3) and exp(-0.1)
    batch = rollout([[2.0], [-0.5]], tokens=3, old=old, mask=mask.tolist())
    options = {"epsilon": 0.2, "epsilon_high": 0.2}
    totals = {"tokens": 4.0, "sequences": 2.0, "max_length": 3}

    loss = masked_sum(LUSPO(**options).token_loss(logprobs, batch).values, sequence_sum(mask, **totals))
    short, long = 0.5 * math.exp(-0.1), -2 * math.exp(0.1 / 3)
    assert loss.item() == pytest.approx((3 * long + short) / 2)
    unweighted = masked_sum(GSPO(**options).token_loss(logprobs, batch).values, sequence_mean(mask, **totals))
    assert unweighted.item() == pytest.approx((long + short) / 2)
    loss.backward()
    # Every token counts the same, -A · s / sequences: no division by the length is left.
    assert logprobs.grad.flatten().tolist() == pytest.approx([long / 2] * 3 + [short / 2, 0.0, 0.0])
