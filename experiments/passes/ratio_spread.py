"""The clipped objective with one more figure."""

from __future__ import annotations

from torch import Tensor

from grpo_lightning.objectives import ClippedObjective, TokenLoss
from grpo_lightning.types import RolloutBatch


class RatioSpread(ClippedObjective):
    """``ClippedObjective``, and how far ratios are from 1: ``ratio_distance``, the mean of |r - 1|."""

    def token_loss(self, logprobs: Tensor, rollout: RolloutBatch) -> TokenLoss:
        loss = super().token_loss(logprobs, rollout)
        return loss._replace(metrics={**loss.metrics, "ratio_distance": (loss.metrics["ratio"] - 1).abs()})
