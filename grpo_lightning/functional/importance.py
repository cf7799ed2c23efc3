"""Importance ratios between the current policy and the one that the samples came from.

With d_t = log π(token t) - log π_old(token t), each bounded to ±20 before anything is added up or exponentiated (as
verl does; far outside any clip range), over a sequence's trained tokens:

    token ratio        exp(d_t)              PPO (arXiv 1707.06347), GRPO (arXiv 2402.03300)
    geometric ratio    exp(mean_t d_t)       GSPO (arXiv 2507.18071): its size does not depend on the length
    product ratio      exp(sum_t d_t)        the probability ratio of the whole sequence, RLOO (arXiv 2402.14740);
                                             the sum is bounded to ±20 as well

Past a bound a ratio is constant: its value stays finite in float32, and its gradient is 0 rather than NaN.
"""

from __future__ import annotations

from torch import Tensor

from grpo_lightning.functional.masking import sequence_averages, sequence_totals

MAX_LOG_RATIO = 20.0


def token_log_ratio(logprobs: Tensor, old_logprobs: Tensor | None) -> Tensor:
    """log π(token) - log π_old(token), within ±20.

    Args:
        logprobs: of the current policy, with gradient, ``[B, T]``.
        old_logprobs: of the policy that started this rollout's updates; None where that is the current policy itself,
            so that the result has the value 0 but the gradient of log π, ``[B, T]``.

    Returns:
        ``[B, T]``.
    """
    old = logprobs.detach() if old_logprobs is None else old_logprobs
    return (logprobs - old).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def token_ratio(logprobs: Tensor, old_logprobs: Tensor | None) -> Tensor:
    """π(token) / π_old(token); arguments and result as in ``token_log_ratio``."""
    return token_log_ratio(logprobs, old_logprobs).exp()


def mean_log_ratio(logprobs: Tensor, old_logprobs: Tensor | None, mask: Tensor) -> Tensor:
    """Mean log-ratio over a sequence's trained tokens, the logarithm of GSPO's ratio; 0 for a sequence without any.

    Args:
        logprobs: of the current policy, with gradient, ``[B, T]``.
        old_logprobs: as in ``token_log_ratio``, ``[B, T]``.
        mask: 1 on a trained token, ``[B, T]``.

    Returns:
        ``[B, 1]``.
    """
    return sequence_averages(token_log_ratio(logprobs, old_logprobs), mask)


def summed_log_ratio(logprobs: Tensor, old_logprobs: Tensor | None, mask: Tensor) -> Tensor:
    """Log-ratio of the whole sequence, within ±20; arguments and result as in ``mean_log_ratio``."""
    return sequence_totals(token_log_ratio(logprobs, old_logprobs), mask).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def geometric_ratio(logprobs: Tensor, old_logprobs: Tensor | None, mask: Tensor) -> Tensor:
    """Geometric mean of a sequence's token ratios; arguments and result as in ``mean_log_ratio``."""
    return mean_log_ratio(logprobs, old_logprobs, mask).exp()


def product_ratio(logprobs: Tensor, old_logprobs: Tensor | None, mask: Tensor) -> Tensor:
    """Product of a sequence's token ratios; arguments and result as in ``mean_log_ratio``."""
    return summed_log_ratio(logprobs, old_logprobs, mask).exp()
