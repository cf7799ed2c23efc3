"""Credit of each token by itself: rewards of tokens ``[P, G, T]`` to advantages ``[P, G, T]``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_lightning.advantages.group import ROUNDING_NOISE
from grpo_lightning.errors import UserError


@dataclass(frozen=True, kw_only=True)
class TokenCredit:
    """What a rollout's tokens earned."""

    advantages: Tensor
    """How much better each token was than expected, 0 outside the mask, ``[P, G, T]``."""

    returns: Tensor | None = None
    """What a critic should have said at each token, its target; arbitrary outside the mask; None without a critic,
    ``[P, G, T]``."""


class TokenEstimator(ABC):
    """Advantages of tokens from rewards of tokens, over all groups of all ranks at once."""

    needs_values: bool = False
    """Whether it needs a critic's values."""

    @abstractmethod
    def __call__(self, rewards: Tensor, *, mask: Tensor, values: Tensor | None = None) -> TokenCredit:
        """Estimate.

        Args:
            rewards: a completion's score at its last token (or its steps' scores at their ends), less beta·KL at each
                token where the objective has its KL in the reward, ``[P, G, T]``.
            mask: 1 on a completion's tokens; all 0 for a completion without a known reward, ``[P, G, T]``.
            values: the critic's expectation before each token; None without a critic, ``[P, G, T]``.
        """


class ReinforcePlusPlus(TokenEstimator):
    """Return from each token on, whitened over all tokens of the batch (REINFORCE++, arXiv 2501.03262).

    R_t = sum_{s >= t} gamma^(s-t) · r_s and A = (R - mean(R)) / (std(R) + eps), the mean and the sample standard
    deviation over every token of every completion. It compares with the whole batch instead of a group, so any group
    size will do, 1 too. A spread within rounding noise teaches nothing: all advantages are 0.

    Args:
        gamma: discount per token, in (0, 1].
        eps: added to the standard deviation.
    """

    def __init__(self, *, gamma: float = 1.0, eps: float = 1e-4) -> None:
        if not 0 < gamma <= 1:
            raise UserError(f"--rollout.advantages.gamma {gamma}: a discount per token lies above 0 and at most at 1")
        if not eps >= 0:
            raise UserError(f"--rollout.advantages.eps {eps}: must not be negative, or it could change the signs")
        self.gamma = gamma
        self.eps = eps

    def __call__(self, rewards: Tensor, *, mask: Tensor, values: Tensor | None = None) -> TokenCredit:
        returns = returns_to_go(rewards, mask=mask, gamma=self.gamma)
        return TokenCredit(advantages=whitened(returns, mask=mask, eps=self.eps).to(rewards.dtype))


def returns_to_go(rewards: Tensor, *, mask: Tensor, gamma: float) -> Tensor:
    """R_t = r_t + gamma · R_{t+1} over the tokens of the mask, in float64, 0 elsewhere, ``[P, G, T]``."""
    kept = torch.where(mask.bool(), rewards.double(), 0.0)
    returns = torch.zeros_like(kept)
    later = torch.zeros_like(kept[..., 0])
    for token in range(kept.shape[-1] - 1, -1, -1):
        later = kept[..., token] + gamma * later
        returns[..., token] = later
    return torch.where(mask.bool(), returns, 0.0)


def whitened(values: Tensor, *, mask: Tensor, eps: float = 1e-4) -> Tensor:
    """(x - mean) / (std + eps) over the mask, of any shape; 0 elsewhere, and everywhere if the spread is noise."""
    known = mask.bool()
    chosen = values[known]
    if chosen.numel() < 2 or chosen.max() - chosen.min() <= ROUNDING_NOISE * chosen.abs().max():
        return torch.zeros_like(values)
    return torch.where(known, (values - chosen.mean()) / (chosen.std() + eps), 0.0)
