"""Ratios of tokens and of sequences."""

from __future__ import annotations

import math

import pytest
import torch

from grpo_lightning.functional.importance import MAX_LOG_RATIO, geometric_ratio, product_ratio, token_ratio


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


# --- of sequences -------------------------------------------------------------------------------------------------

MASK = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])


def test_sequence_ratios_and_gradients_by_hand() -> None:
    old = torch.tensor([[-1.0, -2.0, -3.0], [-1.0, -1.0, -1.0]])
    steps = torch.tensor([[math.log(2.0), math.log(8.0), math.nan], [math.inf, math.nan, 3.0]])
    for ratio, value, slope in ((geometric_ratio, 4.0, 2.0), (product_ratio, 16.0, 16.0)):
        logprobs = (old + steps).requires_grad_()
        found = ratio(logprobs, old, MASK)
        assert found.tolist() == [[pytest.approx(value)], [1.0]]  # 1 where no token is trained
        found.sum().backward()
        assert logprobs.grad.tolist() == [[pytest.approx(slope), pytest.approx(slope), 0.0], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize("ratio", [geometric_ratio, product_ratio])
def test_without_old_values_sequence_ratios_are_exactly_one(ratio) -> None:
    logprobs = (-torch.rand(3, 4) * 9).requires_grad_()
    found = ratio(logprobs, None, torch.ones(3, 4))
    assert found.tolist() == [[1.0], [1.0], [1.0]]
    found.sum().backward()
    assert logprobs.grad.unique().tolist() == [0.25 if ratio is geometric_ratio else 1.0]


@pytest.mark.parametrize("difference", [200.0, -200.0, math.inf, -math.inf])
def test_one_token_far_off_leaves_sequence_ratios_finite(difference: float) -> None:
    old = torch.zeros(1, 2)
    steps = torch.tensor([[difference, math.log(2.0)]])
    bound = math.copysign(MAX_LOG_RATIO, difference)
    logprobs = steps.clone().requires_grad_()
    found = geometric_ratio(logprobs, old, torch.ones(1, 2))
    found.sum().backward()
    assert found.item() == pytest.approx(math.exp(bound / 2) * math.sqrt(2), rel=1e-5)
    assert logprobs.grad[0].tolist() == [0.0, pytest.approx(found.item() / 2)]  # the other token still counts
    product = product_ratio(steps, old, torch.ones(1, 2)).item()
    assert product == pytest.approx(math.exp(bound) * (2 if difference < 0 else 1), rel=1e-5)
