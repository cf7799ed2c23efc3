"""Group Sequence Policy Optimization: one ratio for a whole sequence."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from grpo_lightning.functional.importance import mean_log_ratio
from grpo_lightning.objectives.base import Level
from grpo_lightning.objectives.clipped import ClippedObjective
from grpo_lightning.types import RolloutBatch


class GSPO(ClippedObjective):
    """``ClippedObjective`` with the geometric mean of a sequence's token ratios, s = exp(mean_t log(π/π_old)).

    GSPO (arXiv 2507.18071, eq. 5 and 7): rewards belong to sequences, so clipping does too; a sequence is clipped as a
    whole. The reduction is ``sequence_mean``; any that adds up tokens would weigh sequences by their length.

    On policy the gradient is that of -A·log π, and with ``token_gradient`` it is so token by token.

    Args:
        epsilon: lower clip range ε_low; the default is the paper's, which is small because a mean of log-ratios is.
        epsilon_high: upper clip range ε_high; the default is the paper's.
        token_gradient: GSPO-token (eq. 14): the same value, but each token's loss has the gradient of its own
            log-probability, log s_t = log π_t - sg(log π_t) + sg(log s), instead of all tokens' mean. The gradient of a
            sequence is the same in both forms if its tokens share one factor; set it where they are to differ:
            advantages or a sampler correction by token.
        kwargs: the dual clip, see ``ClippedObjective``; the KL term, see ``RegularizedObjective``.
    """

    def __init__(
        self, *, epsilon: float = 3e-4, epsilon_high: float = 4e-4, token_gradient: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(epsilon=epsilon, epsilon_high=epsilon_high, **kwargs)
        self.token_gradient = token_gradient

    @property
    def level(self) -> Level:
        return "token" if self.token_gradient else "geometric"

    @property
    def meant_for(self) -> str:
        return "sequence_mean"

    def ratio(self, logprobs: Tensor, rollout: RolloutBatch) -> Tensor:
        log_ratio = mean_log_ratio(logprobs, rollout.old_logprobs, rollout.completion_mask)
        if self.token_gradient:
            log_ratio = log_ratio.detach() + (logprobs - logprobs.detach())
        return log_ratio.exp()
