"""Length-Unbiased Sequence Policy Optimization: GSPO, each sequence times its length."""

from __future__ import annotations

from grpo_lightning.objectives.gspo import GSPO


class LUSPO(GSPO):
    """``GSPO`` whose loss of a sequence is multiplied by the sequence's length (arXiv 2602.05261).

    GSPO's mean over a sequence's tokens makes each token of a long answer count less, which favours short ones; LUSPO
    takes the sum. Here that is the reduction and not the objective: this class is GSPO under the name that people look
    for, to be used with ``--rollout.reduction grpo_lightning.functional.reduction.sequence_sum``.
    """

    @property
    def meant_for(self) -> str:
        return "sequence_sum"
