"""What one rank must know of the others; without a process group, a rank is alone and these return their input."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    """Number of ranks."""
    return dist.get_world_size() if _many() else 1


def rank() -> int:
    """This process's number among the ranks."""
    return dist.get_rank() if _many() else 0


def all_sum(values: Tensor) -> Tensor:
    """Entry-wise sum over ranks, same shape on every rank."""
    return _reduce(values, dist.ReduceOp.SUM)


def all_max(values: Tensor) -> Tensor:
    """Entry-wise maximum over ranks, same shape on every rank; NaN if any rank has NaN."""
    if not values.is_floating_point():
        return _reduce(values, dist.ReduceOp.MAX)
    # The backends' own maximum keeps or loses a NaN by chance.
    nan = values.isnan()
    largest, broken = _reduce(
        torch.stack([values.masked_fill(nan, -torch.inf), nan.to(values.dtype)]), dist.ReduceOp.MAX
    )
    return largest.masked_fill(broken > 0, torch.nan)


def any_rank(here: bool) -> bool:
    """True, on every rank, if it is true on one of them."""
    return bool(all_max(torch.tensor([float(here)])))


def all_agree(text: str) -> bool:
    """True if every rank brings the same text: what ranks do together afterwards would hang or mix if they did not."""
    if not _many():
        return True
    number = float(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest(), "big"))  # exact in float64
    largest, smallest = all_max(torch.tensor([number, -number], dtype=torch.float64)).tolist()
    return largest == -smallest


def gather_rows(rows: Tensor) -> Tensor:
    """The rows of all ranks in rank order; every rank must bring the same shape. ``[n, ...]`` to ``[world·n, ...]``."""
    if not _many():
        return rows
    sent = _sendable(rows).contiguous()
    parts = [torch.empty_like(sent) for _ in range(world_size())]
    dist.all_gather(parts, sent)
    return torch.cat(parts).to(rows.device)


def gather_objects(items: list[Any]) -> list[Any]:
    """The items of all ranks in rank order; ranks may bring different numbers."""
    if not _many():
        return items
    parts: list[Any] = [None] * world_size()
    dist.all_gather_object(parts, items)
    return [item for part in parts for item in part]


def _many() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _reduce(values: Tensor, operation: dist.ReduceOp.RedOpType) -> Tensor:
    if not _many():
        return values
    total = _sendable(values).clone()
    dist.all_reduce(total, op=operation)
    return total.to(values.device)


def _sendable(values: Tensor) -> Tensor:
    """On a device that the ranks can exchange: NCCL, which Lightning uses on GPUs, takes no CPU tensors."""
    return values.cuda() if dist.get_backend() == "nccl" else values
