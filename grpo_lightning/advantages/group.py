"""How much better than the others of its group a completion was: rewards ``[P, G]`` to advantages ``[P, G]``.

A missing reward is NaN: it is left out of its group's mean and spread, and its own advantage is 0. All arithmetic is
in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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


def leave_one_out(rewards: Tensor) -> Tensor:
    """r_i less the mean of the *other* rewards of its group (RLOO, arXiv 2402.14740).

    A baseline that does not depend on the completion itself, so it leaves the policy gradient unbiased:
    A_i = r_i - sum_{j != i} r_j / (n - 1) = n / (n - 1) · (r_i - mean(r)) with n known rewards.

    Arguments and errors as in ``group_normalized``.
    """
    centered, _, known = _statistics(rewards)
    count = known.sum(dim=1, keepdim=True)
    advantages = centered * (count / (count - 1).clamp(min=1))
    return torch.where(known & _has_spread(rewards), advantages, 0.0).to(rewards.dtype)


def decoupled(
    terms: Sequence[Tensor], *, weights: Sequence[float], estimator: AdvantageEstimator, eps: float = 1e-4
) -> Tensor:
    """Each reward's own advantages, summed by weight and then normalized over the batch (GDPO, arXiv 2601.05242).

    A = (S - mean(S)) / (std(S) + eps) with S = sum_k w_k · estimator(r_k). Adding rewards first and normalizing their
    sum gives one and the same advantage to different mixtures with one total, and lets the reward with the largest
    spread drown the others; here every reward has a say that only its weight decides. Where they say the opposite of
    each other, what rounding leaves of their sum is 0.

    Args:
        terms: of each reward, NaN where it does not apply, each ``[P, G]``.
        weights: one per reward.
        estimator: from one reward to its advantages.
        eps: added to the standard deviation over the batch, the sample's, as in TRL.

    Returns:
        0 where no reward applies, ``[P, G]``.
    """
    known = ~torch.stack([term.isnan() for term in terms]).all(dim=0)
    parts = torch.stack([weight * estimator(term).double() for weight, term in zip(weights, terms, strict=True)])
    total = parts.sum(dim=0)
    total = torch.where(total.abs() > ROUNDING_NOISE * parts.abs().sum(dim=0), total, 0.0)
    if not _has_spread(total.masked_fill(~known, torch.nan).reshape(1, -1)).item():
        return torch.zeros_like(terms[0])
    of_batch = total[known]
    mean = of_batch.mean()
    if mean.abs() < ROUNDING_NOISE * of_batch.abs().max():  # else groups without any signal would get some
        mean = torch.zeros_like(mean)
    normalized = (total - mean) / (of_batch.std() + eps)
    return torch.where(known, normalized, 0.0).to(terms[0].dtype)


def per_step(rewards: Tensor, *, ends: Tensor, estimator: AdvantageEstimator, length: int) -> Tensor:
    """Advantages of tokens from rewards of steps: process supervision (DeepSeekMath, arXiv 2402.03300, section 4.1.3).

    The estimator compares all steps of a prompt's completions with one another; a token's advantage is the sum over the
    steps that end at it or later, A_t = sum_{n: end(n) >= t} estimator(R)_n.

    Args:
        rewards: of each step, NaN where a completion has no more, ``[P, G, N]``.
        ends: index of each step's last token in its completion, any number where there is no step, ``[P, G, N]``.
        estimator: from rewards ``[P, G·N]`` to advantages of the same shape.
        length: tokens of the longest completion (T).

    Returns:
        ``[P, G, T]``.
    """
    advantages = estimator(rewards.flatten(start_dim=1)).reshape(rewards.shape)
    at_ends = torch.zeros(*rewards.shape[:2], length, dtype=rewards.dtype)
    there = ends.clamp(0, length - 1)
    at_ends.scatter_add_(2, there, torch.where(rewards.isnan(), 0.0, advantages))
    return at_ends.flip(2).cumsum(2).flip(2)


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
