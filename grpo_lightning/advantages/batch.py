"""Rewards compared within their group, on the scale of the whole batch: ``[P, G]`` to ``[P, G]``.

Dividing by the group's own spread blows up questions that are nearly always answered alike; one scale for all groups of
all ranks does not.
"""

from __future__ import annotations

import torch
from torch import Tensor

from grpo_lightning.advantages.group import group_centered


def batch_normalized(rewards: Tensor, *, eps: float = 1e-4) -> Tensor:
    """(r - mean of the group) / (std of all rewards of the batch + eps), TRL's ``scale_rewards="batch"``.

    Proposed with "lite PPO" (arXiv 2508.08221). The standard deviation is the sample's, of the rewards themselves and
    so about the mean of all of them. A group without spread has advantage exactly 0.

    Args:
        rewards: one row per prompt, NaN where missing, ``[P, G]``.
        eps: added to the standard deviation.

    Returns:
        ``[P, G]``.

    Raises:
        UserError: if G is 1.
    """
    known = ~rewards.isnan()
    return (group_centered(rewards.double()) / (_std(rewards[known]) + eps)).to(rewards.dtype)


def reinforce_pp_baseline(rewards: Tensor, *, eps: float = 1e-4) -> Tensor:
    """(r - mean of the group), whitened over the batch (REINFORCE++ with baseline, arXiv 2501.03262).

    A = (C - mean(C)) / (std(C) + eps) with C the rewards less their group's mean and both statistics over all known
    rewards of the batch. mean(C) is 0 because each group's C sum to 0, so it is not subtracted: its rounding error
    would give a group without spread some advantage. Every completion counts once; verl and OpenRLHF take the same
    statistics over tokens, where a long completion counts more.

    Arguments and errors as in ``batch_normalized``.
    """
    known = ~rewards.isnan()
    centered = group_centered(rewards.double())
    return (centered / (_std(centered[known]) + eps)).to(rewards.dtype)


def _std(values: Tensor) -> Tensor:
    """The sample's, 0 with fewer than two values, float64."""
    return values.double().std() if values.numel() > 1 else torch.zeros((), dtype=torch.float64)
