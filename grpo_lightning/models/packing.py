"""Sequences one behind the other in a single row, so that nothing is computed for padding but in the attention.

A batch of B sequences becomes one row of N tokens, N the sum of their lengths. Positions restart with each sequence,
and each sees only itself. Who sees whom is settled by the attention implementation:

- ``sdpa``: by ``packed_sdpa``, which spreads queries, keys and values over B rows for the attention alone. There causal
  order suffices, since padding stands behind a sequence's last token. (Under a mask over the whole row the attention of
  64 sequences would cost 64 times as much, in a small model more than everything else.)
- ``eager``, and ``sdpa`` where a sequence is longer than the model's sliding window: by the mask of N x N entries that
  transformers makes where positions restart.
- ``flash_attention_2``: by its kernel for sequences of unequal lengths, which transformers calls where they restart.

A model that carries a state from token to token (Mamba, convolutions) or makes its positions of the mask (ALiBi) cannot
be packed; ``Policy.verify`` finds out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from grpo_lightning.types import SequenceBatch

PACKED_SDPA = "sdpa_packed"
"""Under which name transformers knows ``packed_sdpa``."""


class PackedBatch(NamedTuple):
    """A batch's sequences in one row."""

    input_ids: Tensor
    """``[1, N]``."""
    positions: Tensor
    """Of each token in its sequence, ``[1, N]``."""
    starts: Tensor
    """Where each sequence begins, ``[B]``."""
    places: Tensor
    """Where each token of the padded batch stands in the row, N for padding: how ``packed_sdpa`` is told which
    sequences there are, in the place of an attention mask; ``[1, 1, B, S]``, integer."""


def pack(batch: SequenceBatch) -> PackedBatch:
    """The sequences of ``batch`` in their order, without padding."""
    inside = batch.attention_mask.bool()
    columns = torch.arange(inside.shape[1], device=inside.device)
    starts = batch.sequence_lengths.cumsum(0) - batch.sequence_lengths
    input_ids = batch.input_ids[inside]
    places = torch.where(inside, starts[:, None] + columns, len(input_ids))
    return PackedBatch(input_ids[None], columns.expand_as(inside)[inside][None], starts, places[None, None])


def use_packed_sdpa(model: PreTrainedModel) -> bool:
    """Have ``model`` use ``packed_sdpa`` in the place of ``sdpa``; False if its attention is another."""
    if model.config._attn_implementation == "sdpa" and model._can_set_attn_implementation():
        model.set_attn_implementation(PACKED_SDPA)
    return bool(model.config._attn_implementation == PACKED_SDPA)


def packed_sdpa(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """transformers' ``sdpa`` over the sequences of a packed row; with any true mask, ``sdpa`` itself.

    Args:
        module: the attention layer.
        query: ``[1, heads, N, D]``.
        key: ``[1, key heads, N, D]``.
        value: ``[1, key heads, N, D]``.
        attention_mask: ``PackedBatch.places``, ``[1, 1, B, S]``; or a boolean or additive mask, or None.
        kwargs: dropout, scaling and what else ``sdpa`` takes.

    Returns:
        ``[1, N, heads, D]``, and None for the attention's weights.
    """
    if attention_mask is None or attention_mask.dtype == torch.bool or attention_mask.is_floating_point():
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    tokens, (rows, width) = query.shape[2], attention_mask.shape[2:]
    places = attention_mask.flatten()
    # Padding takes the row's last token: any finite values do where nothing looks.
    spread = places.clamp(max=tokens - 1)
    query, key, value = (
        part[0].index_select(1, spread).unflatten(1, (rows, width)).transpose(0, 1) for part in (query, key, value)
    )
    output, _ = sdpa_attention_forward(module, query, key, value, None, **kwargs | {"is_causal": True})
    back = places.new_empty(tokens + 1).scatter_(0, places, torch.arange(len(places), device=places.device))
    return output.flatten(0, 1).index_select(0, back[:tokens])[None], None


AttentionInterface.register(PACKED_SDPA, packed_sdpa)
AttentionMaskInterface.register(PACKED_SDPA, sdpa_mask)
