"""VESPO: a smooth weight for each sequence, by how far it is from the policy that sampled it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from grpo_lightning.functional.importance import summed_log_ratio
from grpo_lightning.objectives.base import TokenLoss
from grpo_lightning.objectives.regularized import RegularizedObjective, require
from grpo_lightning.types import RolloutBatch


class VESPO(RegularizedObjective):
    """-sg(φ(W))·A·log π with φ(W) = W^k·exp(λ·(1 - W)), W the whole sequence's probability ratio (arXiv 2602.10693).

    φ(1) = 1. It peaks at W = k/λ (2/3 for good and 3/2 for bad completions by default) and goes to 0 on both sides, so
    no clip is needed. W is taken against the *sampler's* log-probabilities where they are known, as the paper does, so
    it holds the sampler's mismatch as well as stale samples, and ``--model.correction`` leaves this objective alone.
    The reduction is ``token_mean``. On policy the gradient is that of -A·log π. log W is bounded to ±20.

    Args:
        k_pos: k of completions with an advantage of 0 or more: how fast the weight falls towards W = 0.
        lambda_pos: λ of these: how fast it falls for large W.
        k_neg: k of completions with a negative advantage.
        lambda_neg: λ of these.
        kwargs: the KL term; see ``RegularizedObjective``.
    """

    def __init__(
        self,
        *,
        k_pos: float = 2.0,
        lambda_pos: float = 3.0,
        k_neg: float = 3.0,
        lambda_neg: float = 2.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        for name, value in (("k_pos", k_pos), ("lambda_pos", lambda_pos), ("k_neg", k_neg), ("lambda_neg", lambda_neg)):
            require(0 < value < math.inf, name, value, "must be positive, or far-off sequences would keep their weight")
        self.k_pos, self.lambda_pos = k_pos, lambda_pos
        self.k_neg, self.lambda_neg = k_neg, lambda_neg

    @property
    def corrects_sampler(self) -> bool:
        return True

    def policy_loss(self, logprobs: Tensor, rollout: RolloutBatch) -> TokenLoss:
        sampled_by = rollout.old_logprobs if rollout.sampling_logprobs is None else rollout.sampling_logprobs
        log_weight = summed_log_ratio(logprobs.detach(), sampled_by, rollout.completion_mask)
        weight, good = log_weight.exp(), rollout.advantages >= 0
        k = torch.where(good, weight.new_tensor(self.k_pos), weight.new_tensor(self.k_neg))
        decay = torch.where(good, weight.new_tensor(self.lambda_pos), weight.new_tensor(self.lambda_neg))
        phi = (k * log_weight + decay * (1 - weight)).exp()
        values = -phi * rollout.advantages * logprobs
        return TokenLoss(values, {"ratio": weight.expand_as(values), "vespo/phi_seq_mean": phi})
