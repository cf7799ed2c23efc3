"""Does the sampler sample from the policy that is trained?

Nothing else shows it: a sampler with old weights, other weights or another distribution still writes text, and training
goes on, on the wrong samples.
"""

from __future__ import annotations

from torch import Tensor

from grpo_lightning.token_means import TokenMeans
from grpo_lightning.types import RolloutBatch

MEAN, MAX = "sampling/logp_difference/mean", "sampling/logp_difference/max"


def sampler_difference(logprobs: Tensor, batch: RolloutBatch) -> Tensor:
    """|log π(trainer) - log π(sampler)| at the weights the completions were sampled with, in nats, ``[B, T]``.

    Args:
        logprobs: of the current policy; those of the sampling policy are ``batch.old_logprobs`` where it has moved on.
        batch: holds the sampler's figures.
    """
    assert batch.sampling_logprobs is not None
    ours = logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs
    return (ours - batch.sampling_logprobs).abs()


def gap_figures(logprobs: Tensor, batch: RolloutBatch) -> dict[str, float]:
    """Mean and largest difference over the trained tokens of ``batch`` on all ranks; arguments as above."""
    figures, difference = TokenMeans(), sampler_difference(logprobs, batch)
    figures.add({MEAN: difference}, batch.completion_mask)
    figures.add_max(MAX, difference, batch.completion_mask)
    return figures.result()
