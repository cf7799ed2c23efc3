"""Soft Adaptive Policy Optimization: a smooth gate instead of a clip."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from grpo_lightning.functional.importance import token_ratio
from grpo_lightning.objectives.base import TokenLoss
from grpo_lightning.objectives.regularized import RegularizedObjective, require
from grpo_lightning.types import RolloutBatch


class SAPO(RegularizedObjective):
    """-(4/τ)·σ(τ·(r - 1))·A with the token ratio r and τ by the sign of A (arXiv 2511.20347).

    The gradient is that of -w·r·A·log π with w = 4σ(1-σ): 1 on policy, falling smoothly on both sides, the faster the
    larger τ. Tokens with a negative advantage get the larger τ, since their gradient spreads over the whole vocabulary.
    The reduction is ``sequence_mean``. On policy the gradient is that of -A·log π, while the value is -2A/τ.

    Args:
        temperature_pos: τ of tokens with a positive advantage.
        temperature_neg: τ of the others.
        kwargs: the KL term; see ``RegularizedObjective``.
    """

    def __init__(self, *, temperature_pos: float = 1.0, temperature_neg: float = 1.05, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for name, value in (("temperature_pos", temperature_pos), ("temperature_neg", temperature_neg)):
            require(0 < value < math.inf, name, value, "the gate's temperature must be positive")
        self.temperature_pos = temperature_pos
        self.temperature_neg = temperature_neg

    def policy_loss(self, logprobs: Tensor, rollout: RolloutBatch) -> TokenLoss:
        ratio = token_ratio(logprobs, rollout.old_logprobs)
        positive, negative = ratio.new_tensor(self.temperature_pos), ratio.new_tensor(self.temperature_neg)
        temperature = torch.where(rollout.advantages > 0, positive, negative)
        gate = torch.sigmoid(temperature * (ratio - 1))
        values = -(4 / temperature) * gate * rollout.advantages
        weight = 4 * gate * (1 - gate)
        return TokenLoss(values, {"ratio": ratio.detach(), "sapo/gate_mean": weight.detach()})
