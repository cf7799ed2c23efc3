"""The clipped objective of PPO and GRPO."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from grpo_lightning.functional.importance import token_ratio
from grpo_lightning.objectives.base import TokenLoss
from grpo_lightning.objectives.regularized import RegularizedObjective, require
from grpo_lightning.types import RolloutBatch


class ClippedObjective(RegularizedObjective):
    """-min(r·A, clip(r, 1-ε_low, 1+ε_high)·A) + β·KL(policy || reference).

    ``r`` is the token ratio π/π_old and A the advantage. GRPO (arXiv 2402.03300): ε_low = ε_high = 0.2, β = 0.04, plain
    k3, ``sequence_mean``. DAPO (arXiv 2503.14476): ε_high = 0.28, β = 0, ``token_mean``. Dr.GRPO (arXiv 2503.20783):
    β = 0, ``constant_length``, ``group_centered``. With δ the first r is min(r, δ): a bad token that became very likely
    stops counting as well (dual clip, arXiv 1912.09729; written as in INTELLECT-2, arXiv 2505.07291).

    On policy the gradient is that of -A·log π.

    Args:
        epsilon: lower clip range ε_low: a token with a negative advantage stops counting below 1 - ε_low; from 1 on it
            always counts, since no ratio is negative (DeepSeek-R1's ε is 10).
        epsilon_high: upper clip range ε_high; the default is DAPO's "clip higher".
        delta: δ of the dual clip, a ratio above 1 + ε_high; null is none.
        kwargs: the KL term; see ``RegularizedObjective``.
    """

    def __init__(
        self, *, epsilon: float = 0.2, epsilon_high: float = 0.28, delta: float | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        require(0 < epsilon < math.inf, "epsilon", epsilon, "the lower clip range must be positive")
        require(0 < epsilon_high < math.inf, "epsilon_high", epsilon_high, "the upper clip range must be positive")
        bound = f"a ratio above 1 + epsilon_high ({1 + epsilon_high:g}); null turns the dual clip off"
        require(delta is None or 1 + epsilon_high < delta < math.inf, "delta", delta, bound)
        self.epsilon = epsilon
        self.epsilon_high = epsilon_high
        self.delta = delta

    def ratio(self, logprobs: Tensor, rollout: RolloutBatch) -> Tensor:
        """What is clipped: of each token, ``[B, T]``, or of each sequence, ``[B, 1]``; arguments as in
        ``policy_loss``."""
        return token_ratio(logprobs, rollout.old_logprobs)

    def policy_loss(self, logprobs: Tensor, rollout: RolloutBatch) -> TokenLoss:
        ratio, advantages = self.ratio(logprobs, rollout), rollout.advantages
        clipped = ratio.clamp(1 - self.epsilon, 1 + self.epsilon_high)
        bounded = ratio if self.delta is None else ratio.clamp(max=self.delta)
        values = -torch.minimum(bounded * advantages, clipped * advantages)
        shares = clip_shares(
            low=(ratio < 1 - self.epsilon) & (advantages < 0), high=(ratio > 1 + self.epsilon_high) & (advantages > 0)
        )
        if self.delta is not None:
            shares["clip_ratio/delta_mean"] = ((ratio > self.delta) & (advantages < 0)).float()
        return TokenLoss(values, {"ratio": ratio.detach().expand_as(values)}, shares)


def clip_shares(*, low: Tensor, high: Tensor) -> dict[str, Tensor]:
    """Shares of trained tokens whose gradient is cut, in TRL's names.

    TRL counts sequences where a whole sequence has one ratio; here it is tokens always, so a long one counts more.

    Args:
        low: below the range with a negative advantage, bool, ``[B, T]``.
        high: above the range with a positive advantage, bool, ``[B, T]``.
    """
    return {
        "clip_ratio/low_mean": low.float(),
        "clip_ratio/high_mean": high.float(),
        "clip_ratio/region_mean": (low | high).float(),
    }
