"""The clipped objective of PPO and GRPO."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from grpo_lightning.errors import UserError
from grpo_lightning.functional import kl
from grpo_lightning.functional.importance import token_ratio
from grpo_lightning.objectives.base import Objective, TokenLoss
from grpo_lightning.types import RolloutBatch

ESTIMATORS = {"k1": kl.k1, "k2": kl.k2, "k3": kl.k3}


class ClippedObjective(Objective):
    """-min(r·A, clip(r, 1-ε_low, 1+ε_high)·A) + β·KL(policy || reference).

    ``r`` is the token ratio π/π_old and A the advantage. GRPO (arXiv 2402.03300): ε_low = ε_high = 0.2, β = 0.04, plain
    k3, ``sequence_mean``. DAPO (arXiv 2503.14476): ε_high = 0.28, β = 0, ``token_mean``. Dr.GRPO (arXiv 2503.20783):
    β = 0, ``constant_length``, ``group_centered``.

    Args:
        epsilon: lower clip range ε_low: a token with a negative advantage stops counting below 1 - ε_low.
        epsilon_high: upper clip range ε_high; the default is DAPO's "clip higher".
        beta: weight of the KL term. 0 leaves the reference model out of memory altogether.
        kl_estimator: k1, k2 or k3 (``functional.kl``).
        kl_ratio: multiply the KL estimate by the token ratio. On policy this makes the gradient that of the reverse KL;
            without it k3 has the gradient of the forward KL, as in the published GRPO, and k1 has none at all.
            k2 is never multiplied: its own gradient already is that of the reverse KL.
    """

    def __init__(
        self,
        *,
        epsilon: float = 0.2,
        epsilon_high: float = 0.28,
        beta: float = 0.0,
        kl_estimator: Literal["k1", "k2", "k3"] = "k3",
        kl_ratio: bool = True,
    ) -> None:
        if not 0 < epsilon < 1:
            raise UserError(f"--model.objective.epsilon {epsilon}: the lower clip range must lie between 0 and 1")
        if epsilon_high <= 0:
            raise UserError(f"--model.objective.epsilon_high {epsilon_high}: the upper clip range must be positive")
        if beta < 0:
            raise UserError(f"--model.objective.beta {beta}: the KL weight must not be negative; 0 turns it off")
        self.epsilon = epsilon
        self.epsilon_high = epsilon_high
        self.beta = beta
        self.kl_estimator = kl_estimator
        self.kl_ratio = kl_ratio

    @property
    def needs_reference(self) -> bool:
        return self.beta > 0

    @property
    def zero_advantage_means_zero_gradient(self) -> bool:
        return self.beta == 0

    def token_loss(self, logprobs: Tensor, rollout: RolloutBatch) -> TokenLoss:
        ratio = token_ratio(logprobs, rollout.old_logprobs)
        advantages = rollout.advantages
        clipped = ratio.clamp(1 - self.epsilon, 1 + self.epsilon_high)
        values = -torch.minimum(ratio * advantages, clipped * advantages)

        low = ((ratio < 1 - self.epsilon) & (advantages < 0)).float()
        high = ((ratio > 1 + self.epsilon_high) & (advantages > 0)).float()
        shares = {"clip_ratio/low_mean": low, "clip_ratio/high_mean": high, "clip_ratio/region_mean": low + high}
        metrics = {"ratio": ratio.detach()}
        if self.beta > 0:
            assert rollout.ref_logprobs is not None, "beta > 0 without reference log-probabilities"
            divergence = ESTIMATORS[self.kl_estimator](logprobs, rollout.ref_logprobs)
            metrics["kl"] = divergence.detach()
            if self.kl_ratio and self.kl_estimator != "k2":
                divergence = divergence * ratio
            values = values + self.beta * divergence
        return TokenLoss(values, metrics, shares)
