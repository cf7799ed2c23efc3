"""Which tokens count."""

from __future__ import annotations

import torch
from torch import Tensor


def masked_sum(values: Tensor, weights: Tensor) -> Tensor:
    """Σ values · weights over the entries whose weight is not 0, so that NaN or inf elsewhere cannot leak in.

    Args:
        values: any figures, ``[B, T]``.
        weights: a mask or loss weights, ``[B, T]``.

    Returns:
        Scalar.
    """
    return torch.where(weights != 0, values * weights, values.new_zeros(())).sum()


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of ``values`` over ``mask``; 0 if nothing is unmasked.

    Args:
        values: any figures, ``[B, T]``.
        mask: 1 where a value counts, ``[B, T]``.

    Returns:
        Scalar.
    """
    return masked_sum(values, mask) / mask.sum().clamp(min=1)


def sequence_totals(values: Tensor, mask: Tensor) -> Tensor:
    """Sum of each sequence's ``values`` under ``mask``; NaN or inf elsewhere reach neither it nor a gradient.

    Args:
        values: any figures, ``[B, T]``.
        mask: 1 where a value counts, ``[B, T]``.

    Returns:
        ``[B, 1]``.
    """
    return torch.where(mask != 0, values, values.new_zeros(())).sum(dim=1, keepdim=True)


def sequence_averages(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of each sequence's ``values`` under ``mask``, 0 if there are none; otherwise as ``sequence_totals``."""
    return sequence_totals(values, mask) / (mask != 0).sum(dim=1, keepdim=True).clamp(min=1)
