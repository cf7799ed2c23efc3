"""The token ratio."""

from __future__ import annotations

import math

import pytest
import torch

from grpo_lightning.functional.importance import MAX_LOG_RATIO, token_ratio


def test_value_and_gradient() -> None:
    logprobs = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    ratio = token_ratio(logprobs, torch.tensor([[-1.5, -1.0]]))
    assert ratio.tolist() == [pytest.approx([math.exp(0.5), math.exp(-1.0)])]
    ratio.sum().backward()
    assert logprobs.grad.tolist() == [pytest.approx([math.exp(0.5), math.exp(-1.0)])]  # d exp(x) = exp(x)


def test_without_old_values_it_is_exactly_one_with_the_gradient_of_the_logprob() -> None:
    logprobs = (-torch.rand(3, 4) * 9).requires_grad_()
    ratio = token_ratio(logprobs, None)
    assert ratio.unique().tolist() == [1.0]
    ratio.sum().backward()
    assert logprobs.grad.unique().tolist() == [1.0]


@pytest.mark.parametrize("difference", [200.0, -200.0])
def test_far_apart_policies_give_a_finite_ratio_without_gradient(difference: float) -> None:
    logprobs = torch.tensor([difference], requires_grad=True)
    ratio = token_ratio(logprobs, torch.zeros(1))
    ratio.backward()
    assert ratio.item() == pytest.approx(math.exp(math.copysign(MAX_LOG_RATIO, difference)))
    assert logprobs.grad.item() == 0.0


def test_a_missing_temperature_shows_as_a_first_ratio_far_from_one() -> None:
    logits, ids = torch.tensor([[2.0, 0.0]]).expand(2, 2), torch.tensor([0, 1])
    with_temperature = (logits / 0.5).log_softmax(-1).gather(1, ids[:, None])
    without = logits.log_softmax(-1).gather(1, ids[:, None])
    assert token_ratio(with_temperature, without).flatten().tolist() == pytest.approx([1.115, 0.151], abs=5e-4)
