"""How much better than the others of its group a completion was: rewards ``[P, G]`` to advantages ``[P, G]``.

A missing reward is NaN: it is left out of its group's mean and spread, and its own advantage is 0. All arithmetic is
in float64.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from grpo_lightning.errors import UserError

AdvantageEstimator = Callable[[Tensor], Tensor]

ROUNDING_NOISE = 1e-6
"""A spread below this share of the rewards' size is rounding noise of float32 sums: the group taught nothing."""


def group_normalized(rewards: Tensor, *, eps: float = 1e-4) -> Tensor:
    """(r - mean) / (std + eps) within each group (GRPO, arXiv 2402.03300, section 4.1.2).

    The standard deviation is the sample's (divided by G - 1) and ``eps`` is 1e-4, as in TRL. A group without spread,
    or whose spread is rounding noise, has advantage exactly 0.

    Args:
        rewards: one row per prompt, NaN where missing, ``[P, G]``.
        eps: added to the standard deviation.

    Returns:
        ``[P, G]``.

    Raises:
        UserError: if G is 1.
    """
    centered, std, known = _statistics(rewards)
    advantages = centered / (std + eps)
    return torch.where(known & _has_spread(rewards), advantages, 0.0).to(rewards.dtype)


def group_centered(rewards: Tensor) -> Tensor:
    """r - mean within each group, without the division that favours easy and hard questions (Dr.GRPO, 2503.20783).

    Arguments and errors as in ``group_normalized``.
    """
    centered, _, known = _statistics(rewards)
    return torch.where(known & _has_spread(rewards), centered, 0.0).to(rewards.dtype)


def group_std(rewards: Tensor) -> Tensor:
    """Sample standard deviation of each group over its known rewards; 0 with fewer than two, ``[P, G]`` to ``[P]``."""
    return _statistics(rewards)[1].squeeze(1).to(rewards.dtype)


def zero_spread(rewards: Tensor) -> Tensor:
    """True for a group whose rewards are all equal (up to rounding noise), ``[P, G]`` to ``[P]``."""
    return ~_has_spread(rewards).squeeze(1)


def _statistics(rewards: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Centered rewards ``[P, G]`` and sample std ``[P, 1]``, both float64, and where a reward is known ``[P, G]``."""
    if rewards.shape[1] < 2:
        raise UserError(
            "--rollout.group_size 1: an advantage is relative to the other completions of the group; use 2 or more"
        )
    known = ~rewards.isnan()
    values = rewards.double().nan_to_num(0.0)
    count = known.sum(dim=1, keepdim=True)
    mean = values.sum(dim=1, keepdim=True) / count.clamp(min=1)
    centered = torch.where(known, values - mean, 0.0)
    std = (centered.square().sum(dim=1, keepdim=True) / (count - 1).clamp(min=1)).sqrt()
    return centered, std, known


def _has_spread(rewards: Tensor) -> Tensor:
    known = ~rewards.isnan()
    high = rewards.double().masked_fill(~known, -torch.inf).amax(dim=1, keepdim=True)
    low = rewards.double().masked_fill(~known, torch.inf).amin(dim=1, keepdim=True)
    size = torch.maximum(high.abs(), low.abs()).clamp(min=1e-30)
    return torch.where(known.any(dim=1, keepdim=True), high - low > ROUNDING_NOISE * size, False)
