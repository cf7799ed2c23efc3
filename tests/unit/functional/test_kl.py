"""The KL estimators: values by hand, exact gradients by enumeration, and no overflow."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from grpo_lightning.functional import kl

ESTIMATORS = [kl.k1, kl.k2, kl.k3]


@pytest.mark.parametrize(
    ("estimator", "logprob", "ref_logprob", "expected"),
    [
        (kl.k1, -1.0, -2.0, 1.0),
        (kl.k1, -2.0, -1.0, -1.0),
        (kl.k2, -1.0, -2.0, 0.5),
        (kl.k2, -2.0, -1.0, 0.5),
        (kl.k3, -1.0, -2.0, 0.367879),  # e^-1 + 1 - 1
        (kl.k3, -2.0, -1.0, 0.718282),  # e - 1 - 1
        (kl.k3, -0.5, -0.5, 0.0),
    ],
)
def test_values(estimator, logprob: float, ref_logprob: float, expected: float) -> None:
    value = estimator(torch.tensor([logprob]), torch.tensor([ref_logprob]))
    assert value.item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_is_exactly_zero_where_policy_and_reference_agree(estimator) -> None:
    logprobs = torch.randn(4, 5).requires_grad_()
    value = estimator(logprobs, logprobs.detach().clone())
    assert value.abs().max().item() == 0.0


@pytest.mark.parametrize("estimator", [kl.k2, kl.k3])
def test_is_never_negative_however_close_the_policies_are(estimator) -> None:
    logprobs = -torch.rand(20_000) * 12
    ref = logprobs + torch.randn(20_000) * torch.logspace(-9, 0, 20_000)
    assert estimator(logprobs, ref).min().item() >= 0.0


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("difference", [100.0, -100.0])
def test_large_differences_keep_value_and_gradient_finite(estimator, difference: float) -> None:
    # exp(100) is inf in float32; bounding the result instead of the exponent would leave a NaN gradient.
    logprobs = torch.tensor([-1.0], requires_grad=True)
    value = estimator(logprobs, logprobs.detach() + difference)
    value.sum().backward()
    assert torch.isfinite(value).all()
    assert torch.isfinite(logprobs.grad).all()


# --- exact gradients: a softmax over seven tokens, every token weighted by its own probability --------------------


@pytest.fixture
def seven() -> tuple[Tensor, Tensor]:
    """Logits of a policy (with gradient) and log-probabilities of a reference over seven tokens, in float64."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(7, dtype=torch.float64, generator=generator).requires_grad_()
    reference = torch.randn(7, dtype=torch.float64, generator=generator).log_softmax(0)
    return logits, reference


def _estimator_gradient(estimator, logits: Tensor, reference: Tensor, *, times_ratio: bool) -> Tensor:
    """Gradient of E_{x ~ policy}[estimator(x)], the sampling itself held fixed as it is in training."""
    logprobs = logits.log_softmax(0)
    values = estimator(logprobs, reference)
    if times_ratio:
        values = values * (logprobs - logprobs.detach()).exp()
    return torch.autograd.grad((logprobs.detach().exp() * values).sum(), logits)[0]


def _forward_kl_gradient(logits: Tensor, reference: Tensor) -> Tensor:
    return torch.autograd.grad((reference.exp() * (reference - logits.log_softmax(0))).sum(), logits)[0]


def _reverse_kl_gradient(logits: Tensor, reference: Tensor) -> Tensor:
    logprobs = logits.log_softmax(0)
    return torch.autograd.grad((logprobs.exp() * (logprobs - reference)).sum(), logits)[0]


def test_k3_has_the_gradient_of_the_forward_kl(seven) -> None:
    gradient = _estimator_gradient(kl.k3, *seven, times_ratio=False)
    torch.testing.assert_close(gradient, _forward_kl_gradient(*seven), rtol=0, atol=1e-12)
    assert (gradient - _reverse_kl_gradient(*seven)).abs().max() > 0.05


@pytest.mark.parametrize("estimator", [kl.k1, kl.k3])
def test_times_the_ratio_it_has_the_gradient_of_the_reverse_kl(estimator, seven) -> None:
    gradient = _estimator_gradient(estimator, *seven, times_ratio=True)
    torch.testing.assert_close(gradient, _reverse_kl_gradient(*seven), rtol=0, atol=1e-12)
    assert (gradient - _forward_kl_gradient(*seven)).abs().max() > 0.05


def test_k2_has_the_gradient_of_the_reverse_kl_without_a_ratio(seven) -> None:
    gradient = _estimator_gradient(kl.k2, *seven, times_ratio=False)
    torch.testing.assert_close(gradient, _reverse_kl_gradient(*seven), rtol=0, atol=1e-12)


def test_k1_alone_has_no_gradient_on_policy(seven) -> None:
    assert _estimator_gradient(kl.k1, *seven, times_ratio=False).abs().max() < 1e-12


@pytest.mark.parametrize("estimator", [kl.k1, kl.k3])
def test_is_unbiased(estimator, seven) -> None:
    logits, reference = seven
    logprobs = logits.detach().log_softmax(0)
    exact = (logprobs.exp() * (logprobs - reference)).sum().item()
    assert (logprobs.exp() * estimator(logprobs, reference)).sum().item() == pytest.approx(exact, abs=1e-12)


def test_k3_is_held_constant_beyond_the_bound() -> None:
    bound = math.expm1(kl.MAX_EXPONENT) - kl.MAX_EXPONENT
    values = kl.k3(torch.zeros(2, dtype=torch.float64), torch.tensor([25.0, 90.0], dtype=torch.float64))
    assert values.tolist() == pytest.approx([bound, bound])
