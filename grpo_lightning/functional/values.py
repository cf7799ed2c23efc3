"""What a critic is taught, and how good it is."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


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


def fit_moments(values: Tensor, returns: Tensor) -> dict[str, Tensor]:
    """The figures of each token whose means ``explained_variance`` needs, each ``[B, T]``.

    Args:
        values: the critic's, ``[B, T]``.
        returns: what they should have been; NaN where that is not known, ``[B, T]``.
    """
    error = returns.double() - values.detach().double()
    return {"return": returns.double(), "return²": returns.double() ** 2, "error": error, "error²": error**2}


def explained_variance(means: dict[str, float]) -> float:
    """1 - Var(R - V) / Var(R): 1 for a perfect critic, 0 for one that knows no more than the mean; 0 if R is constant.

    Args:
        means: of ``fit_moments`` over the tokens whose return is known.
    """
    spread = means["return²"] - means["return"] ** 2
    unexplained = means["error²"] - means["error"] ** 2
    # A variance from two means has an error of some 1e-16 of the square; below that there is no spread to explain.
    return 1 - unexplained / spread if spread > 1e-12 * means["return²"] else 0.0
