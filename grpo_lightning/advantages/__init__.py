"""How much better a completion, or a token of it, was than expected.

An estimator is a function from rewards ``[P, G]`` to advantages ``[P, G]`` (``group.py``, ``batch.py``), or a
``TokenEstimator`` from rewards of tokens to advantages of tokens ``[P, G, T]`` (``tokens.py``, ``gae.py``). The tensors
hold the groups of all ranks, so a mean over the batch is the mean over all ranks.
"""

from __future__ import annotations

from grpo_lightning.advantages.batch import batch_normalized, reinforce_pp_baseline
from grpo_lightning.advantages.gae import GAE
from grpo_lightning.advantages.group import (
    AdvantageEstimator,
    decoupled,
    group_centered,
    group_normalized,
    group_std,
    leave_one_out,
    per_step,
    zero_spread,
)
from grpo_lightning.advantages.tokens import ReinforcePlusPlus, TokenCredit, TokenEstimator

__all__ = [
    "GAE",
    "AdvantageEstimator",
    "ReinforcePlusPlus",
    "TokenCredit",
    "TokenEstimator",
    "batch_normalized",
    "decoupled",
    "group_centered",
    "group_normalized",
    "group_std",
    "leave_one_out",
    "per_step",
    "reinforce_pp_baseline",
    "zero_spread",
]
