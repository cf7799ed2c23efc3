"""Geometric-Mean Policy Optimization: token ratios clipped one by one, then averaged geometrically."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from grpo_lightning.functional.importance import token_log_ratio
from grpo_lightning.functional.masking import sequence_averages
from grpo_lightning.objectives.base import Level, TokenLoss
from grpo_lightning.objectives.clipped import clip_shares
from grpo_lightning.objectives.regularized import RegularizedObjective, require
from grpo_lightning.types import RolloutBatch


class GMPO(RegularizedObjective):
    """-exp(mean_t c_t)·A with c_t the clipped log-ratio of token t (arXiv 2507.20673, eq. 4).

    With d_t = log(π/π_old): c_t = min(d_t, ε_high) where A > 0 and max(d_t, -ε_low) where A < 0, PPO's one-sided clip
    written for logarithms. A geometric mean is moved less by single outliers than GRPO's arithmetic one, which allows
    the wide range exp(±0.4). The reduction is ``sequence_mean``. On policy the gradient of a sequence is that of
    -A·mean_t log π_t, as with GRPO.

    Args:
        epsilon: lower clip range ε_low *of the log-ratio*: ratios are cut at exp(-ε_low). The default is the paper's.
        epsilon_high: upper clip range ε_high of the log-ratio.
        kwargs: the KL term; see ``RegularizedObjective``.
    """

    def __init__(self, *, epsilon: float = 0.4, epsilon_high: float = 0.4, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for name, value in (("epsilon", epsilon), ("epsilon_high", epsilon_high)):
            require(0 < value < math.inf, name, value, "a clip range of the log-ratio must be positive")
        self.epsilon = epsilon
        self.epsilon_high = epsilon_high

    @property
    def level(self) -> Level:
        return "geometric"

    @property
    def meant_for(self) -> str:
        return "sequence_mean"

    def policy_loss(self, logprobs: Tensor, rollout: RolloutBatch) -> TokenLoss:
        advantages = rollout.advantages
        log_ratio = token_log_ratio(logprobs, rollout.old_logprobs)
        from_above, from_below = log_ratio.clamp(max=self.epsilon_high), log_ratio.clamp(min=-self.epsilon)
        clipped = torch.where(advantages > 0, from_above, from_below)
        ratio = sequence_averages(clipped, rollout.completion_mask).exp()
        values = -ratio * advantages
        shares = clip_shares(
            low=(log_ratio < -self.epsilon) & (advantages < 0), high=(log_ratio > self.epsilon_high) & (advantages > 0)
        )
        return TokenLoss(values, {"ratio": ratio.detach().expand_as(values)}, shares)
