"""What a critic is taught, and how good it is."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from grpo_lightning.functional.masking import masked_sum


class ValueLoss(NamedTuple):
    """A critic's loss, token by token."""

    loss: Tensor
    """To be minimized, 0 where the return is not known, ``[B, T]``."""
    clipped: Tensor
    """1 where the clipped value decides and the critic has no gradient, ``[B, T]``."""


def value_loss(values: Tensor, returns: Tensor, old_values: Tensor, *, clip: float | None) -> ValueLoss:
    """½ · max((V - R)², (clamp(V, V_old - ε, V_old + ε) - R)²): the critic's side of PPO (arXiv 1707.06347).

    The clip is not in the paper but in its authors' code, and in TRL and verl: a value may leave its old one by at most
    ε for what one rollout says. The larger of the two errors counts, so that only steps towards the return are held.

    Args:
        values: of the current critic, with gradient, ``[B, T]``.
        returns: what they should be; NaN where that is not known, ``[B, T]``.
        old_values: of the critic that these returns were made with, ``[B, T]``.
        clip: ε, in units of the reward; None clips nothing.
    """
    known = ~returns.isnan()
    # Before the square: the gradient of a NaN is NaN, also where torch.where then leaves it out.
    target = torch.where(known, returns, values.detach())
    error = (values - target).square()
    if clip is None:
        return ValueLoss(0.5 * error, torch.zeros_like(target))
    held = values.clamp(old_values - clip, old_values + clip)
    held_error = torch.where(known, (held - target).square(), 0.0)
    return ValueLoss(0.5 * torch.maximum(error, held_error), (held_error > error).to(target.dtype))


def fit_sums(values: Tensor, returns: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    """What ``explained_variance`` needs of a part of the tokens: their number, Σ R, Σ R², Σ (R - V), Σ (R - V)².

    Args:
        values: the critic's, ``[B, T]``.
        returns: what they should have been, ``[B, T]``.
        mask: 1 where the return is known and counts, ``[B, T]``.
    """
    returns = returns.double()
    error = returns - values.detach().double()
    figures = torch.ones_like(returns), returns, returns.square(), error, error.square()
    return tuple(masked_sum(figure, mask) for figure in figures)


def explained_variance(
    tokens: float, returns: float, squared_returns: float, errors: float, squared_errors: float
) -> float | None:
    """1 - Var(R - V) / Var(R): 1 for a perfect critic, 0 for one that knows no more than the mean; 0 if R is constant,
    None without a token.

    Args are the sums of ``fit_sums``, added up over all parts.
    """
    if not tokens:
        return None
    spread = squared_returns / tokens - (returns / tokens) ** 2
    unexplained = squared_errors / tokens - (errors / tokens) ** 2
    # A variance from two means has an error of some 1e-16 of the square; below that there is no spread to explain.
    return 1 - unexplained / spread if spread > 1e-12 * squared_returns / tokens else 0.0
