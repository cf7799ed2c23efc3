"""Objectives: what is minimized at each token. One algorithm a file."""

from grpo_lightning.objectives.base import Objective, TokenLoss
from grpo_lightning.objectives.clipped import ClippedObjective

__all__ = ["ClippedObjective", "Objective", "TokenLoss"]
