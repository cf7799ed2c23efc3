"""A policy term and the KL term that the published objectives share."""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from typing import Literal

import torch
from torch import Tensor

from grpo_lightning.errors import UserError
from grpo_lightning.functional import kl
from grpo_lightning.functional.importance import token_ratio
from grpo_lightning.objectives.base import Objective, TokenLoss
from grpo_lightning.types import RolloutBatch

ESTIMATORS = {"k1": kl.k1, "k2": kl.k2, "k3": kl.k3}


def require(holds: bool, name: str, value: object, rule: str) -> None:
    """Refuse a setting of an objective by the name of its flag."""
    if not holds:
        raise UserError(f"--model.objective.{name} {value}: {rule}")


class RegularizedObjective(Objective):
    """An objective's own term (``policy_loss``) plus β·KL(policy || reference) for each token (``functional.kl``).

    What the KL term pulls on while the policy is the one that sampled, averaged over samples (exact sums over a small
    vocabulary are in the tests):

    ==========  ==========  ===========  ====================================================================
    kl_in       estimator   kl_ratio     gradient
    ==========  ==========  ===========  ====================================================================
    loss        k3          true         reverse KL(policy || reference), the quantity itself (arXiv 2512.02556)
    loss        k3          false        forward KL(reference || policy), as in the published GRPO
    loss        k2          either       reverse KL
    loss        k1          true         reverse KL, of higher variance than k3
    loss        k1          false        none: noise around zero
    reward      k1          no matter    reverse KL, by the policy gradient of the penalized reward (RLOO, REINFORCE++)
    reward      k3          no matter    reverse less forward KL: next to nothing while policy and reference are close
    reward      k2          no matter    of second order in the distance, as that of k3: next to nothing, too
    ==========  ==========  ===========  ====================================================================

    ``beta`` may change between optimizer steps, and everything here follows it.

    A subclass's term must have no gradient where the advantage is 0, or the subclass must override
    ``zero_advantage_means_zero_gradient``.

    Args:
        beta: weight β of the KL term. 0 leaves the reference model out of memory altogether.
        kl_estimator: k1, k2 or k3.
        kl_ratio: multiply the estimate in the loss by the token ratio π/π_old, whatever ratio the objective itself
            takes. Its gradient counts, except with k2, whose own gradient already is that of the reverse KL. With it
            the gradient above, of a token after given text, also holds over more steps than one per rollout (arXiv
            2510.01555).
        kl_in: ``loss`` adds β·KL to each token's loss, ``reward`` takes β·KL of each token off the rewards before the
            advantages are made.
    """

    def __init__(
        self,
        *,
        beta: float = 0.0,
        kl_estimator: Literal["k1", "k2", "k3"] = "k3",
        kl_ratio: bool = True,
        kl_in: Literal["loss", "reward"] = "loss",
    ) -> None:
        require(0 <= beta < math.inf, "beta", beta, "the KL weight must not be negative; 0 turns it off")
        require(kl_estimator in ESTIMATORS, "kl_estimator", kl_estimator, "choose from k1, k2, k3")
        require(kl_in in ("loss", "reward"), "kl_in", kl_in, "choose from loss, reward")
        self.beta = beta
        self.kl_estimator = kl_estimator
        self.kl_ratio = kl_ratio
        self.kl_in = kl_in

    @property
    def needs_reference(self) -> bool:
        return self.beta > 0

    @property
    def penalizes_reward(self) -> bool:
        return self.beta > 0 and self.kl_in == "reward"

    @property
    def zero_advantage_means_zero_gradient(self) -> bool:
        return self.beta == 0 or self.kl_in == "reward"

    @abstractmethod
    def policy_loss(self, logprobs: Tensor, rollout: RolloutBatch) -> TokenLoss:
        """The objective without its KL term.

        What it is given is 0 wherever no token is trained, so a NaN or inf there cannot get into a sum over a sequence.

        Args:
            logprobs: of the sampled tokens under the current policy, ``[B, T]``. No gradient flows to tokens that
                ``rollout.entropy_mask`` leaves out, also where the objective's ratio is that of a whole sequence.
            rollout: everything else; its advantages are spread over tokens, ``[B, T]``.
        """

    def token_loss(self, logprobs: Tensor, rollout: RolloutBatch) -> TokenLoss:
        logprobs, rollout = _trained_only(logprobs, rollout)
        learned = logprobs
        if rollout.entropy_mask is not None:
            learned = torch.where(rollout.entropy_mask != 0, logprobs, logprobs.detach())
        loss = self.policy_loss(learned, rollout)
        if self.beta == 0:
            return loss
        assert rollout.ref_logprobs is not None, "beta > 0 without reference log-probabilities"
        divergence = ESTIMATORS[self.kl_estimator](logprobs, rollout.ref_logprobs)
        figure, penalty = divergence.detach(), loss.penalty
        if self.kl_in == "loss":
            if self.kl_ratio:
                ratio = token_ratio(logprobs, rollout.old_logprobs)
                divergence = divergence * (ratio.detach() if self.kl_estimator == "k2" else ratio)
            penalty = self.beta * divergence if penalty is None else penalty + self.beta * divergence
        return loss._replace(
            metrics=loss.metrics | {"kl": figure},
            penalty=penalty,
            sequence_sums=(loss.sequence_sums or {}) | {"kl_sequence": figure},
        )

    def reward_penalty(self, old_logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
        """β·KL of the policy that starts the rollout's updates; see ``Objective``."""
        return self.beta * ESTIMATORS[self.kl_estimator](old_logprobs, ref_logprobs).detach()


def _trained_only(logprobs: Tensor, rollout: RolloutBatch) -> tuple[Tensor, RolloutBatch]:
    """Both with 0 where no token is trained: what stands there reaches no value and, by ``where``, no gradient."""
    trained = rollout.completion_mask != 0

    def clean(figures: Tensor | None) -> Tensor | None:
        return None if figures is None else torch.where(trained, figures, 0.0)

    cleaned = dataclasses.replace(
        rollout,
        advantages=torch.where(trained, rollout.advantages, 0.0),
        old_logprobs=clean(rollout.old_logprobs),
        ref_logprobs=clean(rollout.ref_logprobs),
        sampling_logprobs=clean(rollout.sampling_logprobs),
    )
    return torch.where(trained, logprobs, 0.0), cleaned
