"""Estimators of KL(policy || reference) from the log-probabilities of sampled tokens.

Source: J. Schulman, "Approximating KL Divergence" (2020). With ``x ~ policy`` and ``d = log ref(x) - log policy(x)``:

    k1 = -d                unbiased, may be negative, high variance
    k2 = d² / 2            biased, its gradient is that of the reverse KL
    k3 = exp(d) - d - 1    unbiased, never negative: the term in the GRPO loss (arXiv 2402.03300, eq. 4)

As a *loss*, k3 on policy has the gradient of the forward KL(reference || policy); k3 times the token ratio (value 1 on
policy, but with a gradient) has that of the reverse KL(policy || reference). ``RegularizedObjective`` has the table.
"""

from __future__ import annotations

from torch import Tensor

MAX_EXPONENT = 20.0
"""exp(20) = 4.9e8: past this difference k3 is held constant, so that value and gradient stay finite in float32."""


def k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """log policy - log ref.

    Args:
        logprobs: of the policy, any shape.
        ref_logprobs: of the reference, same shape.

    Returns:
        Same shape.
    """
    return logprobs - ref_logprobs


def k2(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """(log policy - log ref)² / 2; arguments and result as in ``k1``."""
    return 0.5 * (logprobs - ref_logprobs).square()


def k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """exp(d) - d - 1 with d = log ref - log policy; never negative; arguments and result as in ``k1``.

    ``d`` is bounded *before* the exponential: bounding the result would leave inf · 0 = NaN in the gradient.
    """
    d = (ref_logprobs - logprobs).clamp(max=MAX_EXPONENT)
    # expm1 keeps the digits that exp(d) - 1 loses near d = 0; k3 is a square there, so rounding could turn it negative.
    return (d.expm1() - d).clamp(min=0)
