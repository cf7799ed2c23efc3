"""Gradient norm and its clipping, the same for plain, DDP, FSDP2 and FSDP1 parameters."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor


def clip_grad_norm(model: nn.Module, max_norm: float | None) -> float:
    """Scale the gradients so that their norm over all parameters, and all shards of them, is at most ``max_norm``.

    Args:
        model: whose parameters have gradients; those without one do not count.
        max_norm: bound; None only measures.

    Returns:
        The norm before clipping; NaN or inf if a gradient is.
    """
    bound = float("inf") if max_norm is None else max_norm
    if isinstance(model, FullyShardedDataParallel):  # only its root knows how the flat shards lie
        norm = model.clip_grad_norm_(bound)
    else:
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), bound)
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)
