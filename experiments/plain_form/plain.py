"""GRPO computed the plain way, as a yardstick for everything that makes it fast: all logits of all tokens, padded."""

from __future__ import annotations

from typing import Any

import torch

from grpo_lightning import GRPOModule
from grpo_lightning.functional.logprobs import TokenScores
from grpo_lightning.models.policy import Policy, scattered
from grpo_lightning.types import SequenceBatch


class PlainPolicy(Policy):
    """Holds the logits of every token, prompt and padding included, ``[B, S, V]``, for autograd to go through."""

    def forward(self, batch: SequenceBatch, *, temperature: float = 1.0) -> TokenScores:
        positions = torch.arange(batch.input_ids.shape[1], device=batch.input_ids.device).expand_as(batch.input_ids)
        output = self.model(
            input_ids=batch.input_ids, position_ids=positions, attention_mask=batch.attention_mask, use_cache=False
        )
        logprobs = (output.logits.float() / temperature).log_softmax(dim=-1)
        entropy = -(logprobs.exp() * logprobs).sum(dim=-1)
        row, column = where = batch.completion_mask.nonzero(as_tuple=True)
        before = batch.completion_positions[row, column] - 1
        chosen = logprobs[row, before, batch.completion_ids[where]]
        return TokenScores(scattered(chosen, where, batch), scattered(entropy[row, before], where, batch))


class PlainGRPOModule(GRPOModule):
    """``--model experiments.plain_form.plain.PlainGRPOModule``: no packing, no blocks of logits, no row left out."""

    def build_policy(self, path: str, **options: Any) -> Policy:
        return PlainPolicy(super().build_policy(path, **options).model)

    @property
    def drops_zero_advantage(self) -> bool:
        return False
