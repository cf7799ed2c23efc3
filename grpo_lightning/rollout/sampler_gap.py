"""Does the sampler sample from the policy that is trained?

Nothing else shows it: a sampler with old weights, other weights or another distribution still writes text, and training
goes on, on the wrong samples. What small differences do to the gradient is corrected by ``rollout.sampler_correction``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grpo_lightning.functional import kl
from grpo_lightning.token_means import TokenMeans
from grpo_lightning.types import RolloutBatch

MEAN, MAX = "sampling/logp_difference/mean", "sampling/logp_difference/max"
KL_K1, KL_K3 = "sampling/kl_k1", "sampling/kl_k3"


def sampler_log_ratio(logprobs: Tensor, batch: RolloutBatch) -> Tensor:
    """log π(trainer) - log π(sampler) at the weights the completions were sampled with, in nats, ``[B, T]``.

    Args:
        logprobs: of the current policy; those of the sampling policy are ``batch.old_logprobs`` where it has moved on.
        batch: holds the sampler's figures.
    """
    assert batch.sampling_logprobs is not None
    ours = logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs
    return ours - batch.sampling_logprobs


def add_gap(figures: TokenMeans, logprobs: Tensor, batch: RolloutBatch, mask: Tensor) -> None:
    """Add the mean and the largest difference, and KL(sampler || trainer).

    ``sampling/kl_k1`` is the mean of log π(sampler) - log π(trainer): unbiased, since the sampler drew the tokens, and
    negative by chance. ``sampling/kl_k3`` is its form that cannot be negative (``functional.kl``). Both are of a token.

    Args:
        figures: of the optimizer step.
        logprobs: as in ``sampler_log_ratio``, ``[B, T]``.
        batch: likewise.
        mask: 1 on the tokens to compare, ``[B, T]``.
    """
    log_ratio = sampler_log_ratio(logprobs, batch).double()
    figures.add_mean(MEAN, log_ratio.abs(), mask)
    figures.add_max(MAX, log_ratio.abs(), mask)
    trainer, sampler = log_ratio, torch.zeros_like(log_ratio)  # only their difference counts
    figures.add_mean(KL_K1, kl.k1(sampler, trainer), mask)
    figures.add_mean(KL_K3, kl.k3(sampler, trainer), mask)


def gap_figures(logprobs: Tensor, batch: RolloutBatch) -> dict[str, float]:
    """The figures of ``add_gap`` over the trained tokens of ``batch`` on all ranks; arguments as there."""
    figures = TokenMeans()
    add_gap(figures, logprobs, batch, batch.completion_mask)
    return figures.result()
