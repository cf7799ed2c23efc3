"""Gradient norm and its clipping, the same for plain, DDP and FSDP2 parameters."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.tensor import DTensor


def clip_grad_norm(parameters: Iterable[nn.Parameter], max_norm: float | None) -> float:
    """Scale the gradients so that their norm over all parameters, and all shards of them, is at most ``max_norm``.

    Args:
        parameters: with gradients.
        max_norm: bound; None only measures.

    Returns:
        The norm before clipping; NaN or inf if a gradient is.
    """
    bound = float("inf") if max_norm is None else max_norm
    norm = torch.nn.utils.clip_grad_norm_(parameters, bound)
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
