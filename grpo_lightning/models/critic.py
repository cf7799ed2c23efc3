"""What a completion is expected to earn, before each of its tokens: on the policy's own trunk or by another model."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from grpo_lightning.models.policy import Policy, scattered
from grpo_lightning.types import SequenceBatch


class ValueHead(nn.Linear):
    """A hidden state to one number, in float32 whatever the model computes in.

    Zero at first: the critic begins without an opinion, and the first advantages are those of the rewards alone.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model.get_output_embeddings().weight.shape[1], 1, device=model.device, dtype=torch.float32)

    def reset_parameters(self) -> None:
        """Without drawing random numbers: those of the run stay as they are without a critic."""
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, states: Tensor) -> Tensor:
        """``[N, H]`` to ``[N]``."""
        with torch.autocast(states.device.type, enabled=False):
            return nn.functional.linear(states.float(), self.weight.float(), self.bias.float()).squeeze(-1)


class ScoresAndValues(NamedTuple):
    """What a policy with a value head says of given tokens: ``TokenScores`` and one more."""

    logprobs: Tensor
    """As in ``TokenScores``, ``[B, T]``."""
    entropy: Tensor
    """As in ``TokenScores``, ``[B, T]``."""
    values: Tensor
    """What the completion is expected to earn, before each token; 0 where no token is trained, ``[B, T]``."""


class PolicyWithValues(Policy):
    """A policy with a value head on its trunk. The head is no part of ``model``, and so of no sampler and no export.

    Args:
        policy: gives its model away.
    """

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy.model, packing=policy.packing)
        self.value_head = ValueHead(policy.model)

    def forward(  # type: ignore[override]
        self, batch: SequenceBatch, *, temperature: float = 1.0, only_values: bool = False
    ) -> ScoresAndValues:
        """Score the trained tokens of ``batch``; their values are those of the very states that predict them.

        Args:
            batch: sequences; ``completion_mask`` says which tokens are scored.
            temperature: the one the completions were sampled at.
            only_values: leave out the language-model head; log-probabilities and entropies are then 0.
        """
        where = batch.completion_mask.nonzero(as_tuple=True)
        states = self.predicting_states(batch, *where)
        values = scattered(self.value_head(states), where, batch)
        if only_values:
            return ScoresAndValues(torch.zeros_like(values), torch.zeros_like(values), values)
        return ScoresAndValues(*self.scores(states, batch, where, temperature=temperature), values)


class Critic(Policy):
    """A model of its own, a language model with a value head in the place of its language-model head.

    Args:
        policy: gives its model away, which loses its head.
    """

    def __init__(self, policy: Policy) -> None:
        head = ValueHead(policy.model)
        policy.model.set_output_embeddings(None)  # a parameter without a gradient would stop DDP
        super().__init__(policy.model, packing=policy.packing)
        self.value_head = head

    def forward(self, batch: SequenceBatch) -> Tensor:  # type: ignore[override]
        """What is expected before each trained token of ``batch``, 0 elsewhere, ``[B, T]``."""
        where = batch.completion_mask.nonzero(as_tuple=True)
        return scattered(self.value_head(self.predicting_states(batch, *where)), where, batch)
