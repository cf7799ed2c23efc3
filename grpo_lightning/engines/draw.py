"""Draw tokens so that a row's random stream is its own, and say how likely each was under the sampled distribution."""

from __future__ import annotations

import torch
from torch import Tensor

from grpo_lightning.engines.base import Sampling


def uniforms(seeds: list[int], length: int) -> Tensor:
    """One uniform number for each row and position, every row from its own generator.

    Args:
        seeds: one per row.
        length: positions.

    Returns:
        Numbers in [0, 1), float64, ``[B, T]``.
    """
    generator = torch.Generator()
    rows = [torch.rand(length, generator=generator.manual_seed(seed), dtype=torch.float64) for seed in seeds]
    return torch.stack(rows) if rows else torch.empty(0, length, dtype=torch.float64)


def processed_logprobs(logits: Tensor, sampling: Sampling) -> Tensor:
    """Log-probabilities of the distribution that is sampled: temperature, then min-p, top-k and top-p, normalized.

    The filters come in vLLM's order, so that both samplers mean the same distribution: min-p compares with the
    likeliest token, top-k keeps ties with the k-th, and top-p keeps the fewest likeliest of what is left that hold at
    least this share. Temperature 0 gives the unscaled distribution.

    Args:
        logits: ``[B, V]``.
        sampling: temperature and filters.

    Returns:
        float32; -inf where a filter dropped the token, ``[B, V]``.
    """
    logits = logits.float()
    if sampling.temperature == 0:
        return torch.log_softmax(logits, dim=-1)
    logits = logits / sampling.temperature
    if sampling.min_p > 0:
        probs = torch.softmax(logits, dim=-1)
        logits = logits.masked_fill(probs < sampling.min_p * probs.amax(dim=-1, keepdim=True), -torch.inf)
    if 0 < sampling.top_k < logits.shape[-1]:
        kth = logits.topk(sampling.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)
    if sampling.top_p < 1:
        ascending, order = logits.sort(dim=-1)
        dropped = ascending.softmax(dim=-1).cumsum(dim=-1) <= 1 - sampling.top_p
        dropped[:, -1] = False
        logits = logits.masked_fill(dropped.scatter(1, order, dropped), -torch.inf)
    return torch.log_softmax(logits, dim=-1)


def draw(logprobs: Tensor, uniform: Tensor) -> Tensor:
    """The token in whose share of [0, 1) the uniform number falls (inverse of the cumulative distribution).

    Float64, so that a row's choice does not depend on who else is in the batch, up to rounding of the logits. A token
    of probability 0 is never drawn.

    Args:
        logprobs: as ``processed_logprobs`` gives them, ``[B, V]``.
        uniform: numbers in [0, 1), ``[B]``.

    Returns:
        Token ids, ``[B]``.
    """
    cumulative = logprobs.double().exp().cumsum(dim=-1)
    # At most (1 - 2**-53) times the total, which rounds to less than the total: there is always a token above it.
    point = uniform * cumulative[:, -1]
    return torch.searchsorted(cumulative, point[:, None], right=True).squeeze(1)
