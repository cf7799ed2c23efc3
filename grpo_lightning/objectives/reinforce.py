"""The plain policy gradient."""

from __future__ import annotations

from torch import Tensor

from grpo_lightning.objectives.base import TokenLoss
from grpo_lightning.objectives.regularized import RegularizedObjective
from grpo_lightning.types import RolloutBatch


class Reinforce(RegularizedObjective):
    """-A·log π: no ratio and no clip (Williams 1992).

    Right for one step per rollout, where it has the gradient of every other objective here; over more steps nothing
    corrects for samples of a policy that is no longer the current one. With ``sequence_sum`` it is the policy gradient
    of whole sequences. The value says nothing, only its gradient does.
    """

    def policy_loss(self, logprobs: Tensor, rollout: RolloutBatch) -> TokenLoss:
        return TokenLoss(-rollout.advantages * logprobs, {})
