"""Rollouts of a few tokens, as the tests of objectives write them down."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from grpo_lightning.types import RolloutBatch

Rows = Sequence[Sequence[float]]


def numbers(rows: Rows, *, grad: bool = False) -> Tensor:
    """float64, so that figures worked out by hand can be held against them closely."""
    return torch.tensor(rows, dtype=torch.float64, requires_grad=grad)


def rollout(
    advantages: Rows,
    *,
    tokens: int = 1,
    old: Rows | None = None,
    ref: Rows | None = None,
    sampling: Rows | None = None,
    mask: Rows | None = None,
) -> RolloutBatch:
    """A batch of one prompt token and ``tokens`` completion tokens a row, all trained unless ``mask`` says less."""
    rows = len(advantages)
    return RolloutBatch(
        input_ids=torch.zeros(rows, tokens + 1, dtype=torch.long),
        sequence_lengths=torch.full((rows,), tokens + 1),
        prompt_lengths=torch.ones(rows, dtype=torch.long),
        completion_mask=torch.ones(rows, tokens) if mask is None else torch.tensor(mask),
        advantages=numbers(advantages),
        old_logprobs=None if old is None else numbers(old),
        ref_logprobs=None if ref is None else numbers(ref),
        sampling_logprobs=None if sampling is None else numbers(sampling),
    )
