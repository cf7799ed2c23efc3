"""What an objective is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal, NamedTuple

from torch import Tensor

from grpo_lightning.types import RolloutBatch

Level = Literal["token", "sequence", "geometric"]
"""What one ratio belongs to: a token, or a whole sequence (the product or the geometric mean of its tokens' ratios)."""


class TokenLoss(NamedTuple):
    """What an objective says of each token."""

    values: Tensor
    """The policy's term, to be minimized; entries where ``completion_mask`` is 0 are ignored, ``[B, T]``."""
    metrics: dict[str, Tensor]
    """Figures to log as their mean over the tokens that reached the backward pass, each ``[B, T]``."""
    shares: dict[str, Tensor] | None = None
    """Figures to log as their mean over *all* trained tokens of the optimizer step, where a token whose sequence was
    left out counts as 0 (a clip ratio: what has no advantage is not clipped), each ``[B, T]``."""
    penalty: Tensor | None = None
    """Added to the policy's term, β · KL, and not touched by what corrects that for the sampler's mismatch or confines
    it to tokens of high entropy; None is nothing, ``[B, T]``."""
    sequence_sums: dict[str, Tensor] | None = None
    """Figures to log summed over a sequence's tokens and averaged over sequences, each ``[B, T]``."""


class Objective(ABC):
    """A policy-gradient objective, token by token.

    A subclass says what each token contributes; how tokens are averaged (``functional.reduction``) and how advantages
    are made (``advantages``) are separate choices. A new objective is one subclass in one file, named by
    ``--model.objective`` in the config.
    """

    @property
    def needs_reference(self) -> bool:
        """True if ``token_loss`` reads ``rollout.ref_logprobs``; the reference model is not even loaded otherwise."""
        return False

    @property
    def zero_advantage_means_zero_gradient(self) -> bool:
        """True if sequences with advantage 0 may be left out of the backward pass without changing the gradient.

        False unless an objective says so: with a KL term or an entropy bonus it is not true.
        """
        return False

    @property
    def penalizes_reward(self) -> bool:
        """True if ``reward_penalty`` is to be taken off the rewards of tokens before advantages are made."""
        return False

    def reward_penalty(self, old_logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
        """What is taken off each token's reward, for an objective whose KL term is in the reward.

        Args:
            old_logprobs: of the policy that sampled, ``[B, T]``.
            ref_logprobs: of the reference policy, ``[B, T]``.

        Returns:
            Without gradient, ``[B, T]``.
        """
        raise NotImplementedError(f"{type(self).__name__} penalizes rewards and does not say by how much")

    @property
    def corrects_sampler(self) -> bool:
        """True if the objective itself weighs completions by the sampler's probabilities, so that correcting its loss
        for the sampler's mismatch would do so twice."""
        return False

    @property
    def level(self) -> Level:
        """``token`` if the gradient of a token's value is that token's alone; else the ratio of whole sequences of
        which every token's value is a function.

        The gradient of such a value spreads over all tokens of its sequence. What differs from token to token and
        multiplies it would act by its mean over the sequence, and on no token by itself. So a sampler correction is of
        this level unless another one is set, and refused by token; advantages by token are refused; and learning from
        ``rollout.entropy_mask`` alone is the objective's own affair, where a token's value is otherwise multiplied by
        the mask.
        """
        return "token"

    @property
    def meant_for(self) -> str | None:
        """Name of the reduction (``functional.reduction``) that the algorithm is defined with; another one is warned
        of. None if any will do."""
        return None

    @abstractmethod
    def token_loss(self, logprobs: Tensor, rollout: RolloutBatch) -> TokenLoss:
        """Loss of each token.

        Args:
            logprobs: of the sampled tokens under the current policy at the sampling temperature, with gradient,
                ``[B, T]``.
            rollout: everything else: advantages, old and reference log-probabilities, mask.
        """
