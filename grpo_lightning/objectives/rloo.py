"""REINFORCE with a leave-one-out baseline: the whole completion is one action."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from grpo_lightning.functional.importance import product_ratio
from grpo_lightning.objectives.base import Level
from grpo_lightning.objectives.clipped import ClippedObjective
from grpo_lightning.types import RolloutBatch


class RLOO(ClippedObjective):
    """``ClippedObjective`` with the ratio of the whole sequence, the *product* of its token ratios.

    RLOO (arXiv 2402.14740) is REINFORCE on sequences with ``advantages.leave_one_out``, one step per rollout, and has
    no ratio. On policy this has its gradient, that of -A·sum_t log π_t, with the reduction ``sequence_mean`` (the same
    as ``Reinforce`` with ``sequence_sum``); over more than one step the ratio corrects and the clip bounds, as in TRL's
    RLOOTrainer. A product over many tokens leaves the range soon, so keep to few steps per rollout.

    Args:
        epsilon: lower clip range ε_low.
        epsilon_high: upper clip range ε_high; the default is TRL's.
        kwargs: the dual clip, see ``ClippedObjective``; the KL term, see ``RegularizedObjective``.
    """

    def __init__(self, *, epsilon: float = 0.2, epsilon_high: float = 0.2, **kwargs: Any) -> None:
        super().__init__(epsilon=epsilon, epsilon_high=epsilon_high, **kwargs)

    @property
    def level(self) -> Level:
        return "sequence"

    @property
    def meant_for(self) -> str:
        return "sequence_mean"

    def ratio(self, logprobs: Tensor, rollout: RolloutBatch) -> Tensor:
        return product_ratio(logprobs, rollout.old_logprobs, rollout.completion_mask)
