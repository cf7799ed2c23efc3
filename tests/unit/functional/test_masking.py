"""Sums and means over the tokens that count."""

from __future__ import annotations

import math

import pytest
import torch

from grpo_lightning.functional.masking import masked_mean, masked_sum, sequence_averages, sequence_totals


def test_masked_sum_weighs_and_ignores_what_has_no_weight() -> None:
    values = torch.tensor([[2.0, math.nan, 3.0], [math.inf, 4.0, -1.0]], requires_grad=True)
    total = masked_sum(values, torch.tensor([[0.5, 0.0, 1.0], [0.0, 0.25, 2.0]]))
    assert total.item() == pytest.approx(1 + 3 + 1 - 2)
    total.backward()
    assert values.grad.tolist() == [[0.5, 0.0, 1.0], [0.0, 0.25, 2.0]]


def test_masked_mean_divides_by_what_counts() -> None:
    values = torch.tensor([[1.0, 2.0, 50.0], [6.0, 50.0, 50.0]])
    assert masked_mean(values, torch.tensor([[1.0, 1, 0], [1, 0, 0]])).item() == 3.0
    assert masked_mean(values, torch.zeros(2, 3)).item() == 0.0


@pytest.mark.parametrize(
    ("reduce", "expected", "slopes"),
    [
        (sequence_totals, [[4.0], [5.0], [0.0]], [[1.0, 0.0, 1.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]),
        (sequence_averages, [[2.0], [5.0], [0.0]], [[0.5, 0.0, 0.5], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]),
    ],
)
def test_sequences_add_up_only_what_counts(reduce, expected: list, slopes: list) -> None:
    values = torch.tensor([[1.0, math.nan, 3.0], [math.inf, 5.0, -math.inf], [9.0, 9.0, math.nan]], requires_grad=True)
    result = reduce(values, torch.tensor([[1.0, 0, 1], [0, 1, 0], [0, 0, 0]]))
    assert result.tolist() == expected
    result.sum().backward()
    assert values.grad.tolist() == slopes
