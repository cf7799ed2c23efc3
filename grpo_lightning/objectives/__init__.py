"""Objectives: what is minimized at each token. One algorithm a file."""

from grpo_lightning.objectives.base import Objective, TokenLoss
from grpo_lightning.objectives.cispo import CISPO
from grpo_lightning.objectives.clipped import ClippedObjective
from grpo_lightning.objectives.gmpo import GMPO
from grpo_lightning.objectives.gspo import GSPO
from grpo_lightning.objectives.luspo import LUSPO
from grpo_lightning.objectives.regularized import RegularizedObjective
from grpo_lightning.objectives.reinforce import Reinforce
from grpo_lightning.objectives.rloo import RLOO
from grpo_lightning.objectives.sapo import SAPO
from grpo_lightning.objectives.vespo import VESPO

__all__ = [
    "CISPO",
    "GMPO",
    "GSPO",
    "LUSPO",
    "RLOO",
    "SAPO",
    "VESPO",
    "ClippedObjective",
    "Objective",
    "RegularizedObjective",
    "Reinforce",
    "TokenLoss",
]
