"""Importance ratios between the current policy and the one that the samples came from."""

from __future__ import annotations

from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Log-ratios are bounded to ±20 before the exponential (as verl does), far outside any clip range."""


def token_ratio(logprobs: Tensor, old_logprobs: Tensor | None) -> Tensor:
    """π(token) / π_old(token), the ratio of PPO and GRPO (arXiv 1707.06347, 2402.03300).

    Args:
        logprobs: of the current policy, with gradient, ``[B, T]``.
        old_logprobs: of the policy that started this rollout's updates; None where that is the current policy itself,
            so that the ratio has the value 1 but the gradient of log π, ``[B, T]``.

    Returns:
        ``[B, T]``.
    """
    old = logprobs.detach() if old_logprobs is None else old_logprobs
    return (logprobs - old).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
