"""GRPO: what makes the policy gradient group-relative."""

from __future__ import annotations

from grpo_lightning.advantages import AdvantageEstimator, group_normalized
from grpo_lightning.rollout_module import RolloutModule


class GRPOModule(RolloutModule):
    """Group Relative Policy Optimization (arXiv 2402.03300): no critic, a completion is compared with its group.

    Algorithm 1 of the paper is ``RolloutModule.training_step``, and every argument is described there and in
    ``PolicyModule``.
    """

    @property
    def estimator(self) -> AdvantageEstimator:
        return group_normalized
