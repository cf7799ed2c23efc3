"""CISPO: clip the importance weight, keep every token's gradient."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from grpo_lightning.functional.importance import token_ratio
from grpo_lightning.objectives.base import TokenLoss
from grpo_lightning.objectives.regularized import RegularizedObjective, require
from grpo_lightning.types import RolloutBatch


class CISPO(RegularizedObjective):
    """-sg(clip(r, 1-ε_low, 1+ε_high))·A·log π, with the token ratio r (MiniMax-M1, arXiv 2506.13585, eq. 4 and 5).

    Clipping bounds how much a token counts, but none stops counting, as rare turning points ("wait", "however") do
    after the first step with ``ClippedObjective``. The reduction is ``token_mean``. On policy the gradient is that of
    -A·log π. The value is no surrogate: it says nothing, only its gradient does.

    The bound has several meanings in the field. Ours is the paper's, which verl and NeMo-RL share: weights lie in
    [1 - ε_low, 1 + ε_high]. TRL names the upper *bound* itself and has no lower one, so a TRL run with
    ``epsilon_high=5.0`` (what ScaleRL, arXiv 2510.13786, makes of it) is here ``epsilon: null, epsilon_high: 4.0``, the
    default: always TRL's number less 1. (Left unset in TRL, the bound is 0.2: the weight of nearly every token, so that
    all gradients are 0.2 times those of ``Reinforce``. That is a learning rate and is not to be had here.)

    Args:
        epsilon: ε_low, below 1; null is no lower bound, as in the paper's runs.
        epsilon_high: ε_high.
        kwargs: the KL term; see ``RegularizedObjective``.
    """

    def __init__(self, *, epsilon: float | None = None, epsilon_high: float = 4.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        rule = "the lower clip range must lie between 0 and 1; null is no lower bound"
        require(epsilon is None or 0 < epsilon < 1, "epsilon", epsilon, rule)
        rule = "the upper clip range must be positive: weights go up to 1 + epsilon_high"
        require(0 < epsilon_high < math.inf, "epsilon_high", epsilon_high, rule)
        self.epsilon = epsilon
        self.epsilon_high = epsilon_high

    def policy_loss(self, logprobs: Tensor, rollout: RolloutBatch) -> TokenLoss:
        ratio = token_ratio(logprobs, rollout.old_logprobs).detach()
        lowest = 0.0 if self.epsilon is None else 1 - self.epsilon
        weights = ratio.clamp(lowest, 1 + self.epsilon_high)
        values = -weights * rollout.advantages * logprobs
        clipped = (ratio > 1 + self.epsilon_high) & (rollout.advantages > 0)  # as TRL counts
        return TokenLoss(values, {"ratio": ratio}, {"cispo_clip_ratio": clipped.float()})
