"""Sequences one behind the other in a single row: nothing is computed for padding, and a group's prompt only once.

A batch of B sequences becomes one row of N tokens: each prompt that differs from the one of the sequence before it,
followed by the completions that share it. Positions restart with each sequence. So a group of G completions with a
prompt of p tokens costs p tokens instead of G · p. The prompt's states are those of every sequence that shares it,
since no token sees a later one; in the backward pass their gradients add up. Who sees whom is settled by the attention
implementation:

- ``sdpa``: by ``packed_sdpa``, which spreads queries, keys and values over padded blocks of sequences of like length,
  for the attention alone. (Under a mask over the whole row the attention of 64 sequences would cost 64 times as much,
  in a small model more than everything else.)
- ``eager``, ``flex_attention``: by the mask of N x N entries that transformers makes where positions restart.
- ``flash_attention_2``: by its kernel for sequences of unequal lengths, which transformers calls where they restart.

The last two know no shared prompts: there every sequence brings its own. A model that carries a state from token to
token (Mamba, convolutions) or makes its positions of the mask (ALiBi) cannot be packed; ``Policy.verify`` finds out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from grpo_lightning.errors import UserError
from grpo_lightning.types import SequenceBatch

PACKED_SDPA = "sdpa_packed"
"""Under which name transformers knows ``packed_sdpa``."""
FAR = 2**40
"""A position behind everything, which nothing sees."""


class Block(NamedTuple):
    """Some sequences, or parts of them, that ``packed_sdpa`` computes together: b of them, padded to like length."""

    queries: Tensor
    """Where in the row each stands, ``[b, q]``. Padding takes the row's last token: any finite values do where nothing
    looks."""
    keys: Tensor
    """The same of the tokens they may see, ``[b, k]``."""
    mask: Tensor | None
    """True where a query sees a key, ``[b, 1, q, k]``; None where they are the same tokens in causal order."""
    windowed: Tensor | None
    """``mask`` in a layer with a sliding window; None where that is no narrower, ``[b, 1, q, k]``."""


class Spread(NamedTuple):
    """How ``packed_sdpa`` gets from a packed row to padded blocks and back."""

    blocks: list[Block]
    """Every token of the row is a query in one of them, or with the same result in several."""
    back: Tensor
    """Where in the blocks' queries, flattened one behind the other, each token of the row is found, ``[N]``."""
    exceeded: int | None
    """Sliding window of the model, in tokens, if a sequence exceeds it."""


class PackedBatch(NamedTuple):
    """A batch's sequences in one row."""

    input_ids: Tensor
    """``[1, N]``."""
    positions: Tensor
    """Of each token in its sequence, ``[1, N]``."""
    places: Tensor
    """Where each token of the padded batch stands in the row; N for padding, ``[B, S]``."""
    owners: Tensor
    """Sequence that brought each one's prompt, ``[B]``."""


def pack(batch: SequenceBatch, *, share_prompts: bool = True) -> PackedBatch:
    """The sequences of ``batch`` in their order, without padding.

    Args:
        batch: sequences.
        share_prompts: sequences behind each other with the same prompt have it once.
    """
    columns = torch.arange(batch.input_ids.shape[1], device=batch.input_ids.device)
    rows = torch.arange(len(batch), device=columns.device)
    brings = batch.new_prompts if share_prompts else torch.ones_like(rows, dtype=torch.bool)
    in_prompt = columns < batch.prompt_lengths[:, None]
    inside = batch.attention_mask.bool()
    kept = inside & (brings[:, None] | ~in_prompt)
    places = kept.flatten().cumsum(0).view_as(kept) - 1
    owners = torch.where(brings, rows, 0).cummax(0).values
    places = torch.where(in_prompt, places[owners], places)
    input_ids = batch.input_ids[kept]
    places = torch.where(inside, places, len(input_ids))
    return PackedBatch(input_ids[None], columns.expand_as(kept)[kept][None], places, owners)


def spread(packed: PackedBatch, batch: SequenceBatch, *, window: int | None = None) -> Spread:
    """Blocks in which nothing much is computed twice or for padding.

    A completion that is longer than its prompt is computed with it, as a whole sequence: causal order is all it needs,
    and attention kernels leave out the half that causal order hides. Of others the completions alone ask, and the
    prompts by themselves, once each.

    Args:
        packed: sequences.
        batch: the same, padded.
        window: sliding window of the model, in tokens.
    """
    lengths, prompts = batch.sequence_lengths.tolist(), batch.prompt_lengths.tolist()
    completions = [length - prompt for length, prompt in zip(lengths, prompts, strict=True)]
    whole = [row for row, completion in enumerate(completions) if completion > prompts[row]]
    others = [row for row, completion in enumerate(completions) if completion <= prompts[row]]
    owners = packed.owners[others].unique().tolist()
    blocks = [_causal(packed, rows, lengths[rows[0]], window) for rows in _alike(whole, lengths, 0.75)]
    blocks += [_causal(packed, rows, prompts[rows[0]], window) for rows in _alike(owners, prompts, 0.5)]
    for like in _alike(others, prompts, 0.5):
        for rows in _alike(like, completions, 0.5):
            blocks.append(_completions(packed, batch, rows, window))
    everywhere = torch.cat([block.queries.flatten() for block in blocks])
    numbers = torch.arange(len(everywhere), device=everywhere.device)
    # Of several places the first, so that it is always the same one.
    count = packed.input_ids.shape[1]
    back = numbers.new_full((count + 1,), len(numbers)).scatter_reduce_(0, everywhere, numbers, "amin")[:count]
    blocks = [b._replace(queries=b.queries.clamp(max=count - 1), keys=b.keys.clamp(max=count - 1)) for b in blocks]
    return Spread(blocks, back, window if window is not None and max(lengths) > window else None)


def _alike(rows: list[int], lengths: list[int], ratio: float) -> list[list[int]]:
    """``rows`` cut where one is shorter than ``ratio`` times the longest of its part, the longest first."""
    parts: list[list[int]] = []
    for row in sorted(rows, key=lambda row: (-lengths[row], row)):
        if not parts or lengths[row] < ratio * lengths[parts[-1][0]]:
            parts.append([])
        parts[-1].append(row)
    return parts


def _causal(packed: PackedBatch, rows: list[int], length: int, window: int | None) -> Block:
    """The first ``length`` tokens of ``rows``; padding stands behind a sequence's last token, where nothing sees it."""
    places = packed.places[rows, :length]
    windowed = None
    if window is not None and length > window:
        positions = torch.arange(length, device=places.device)
        windowed = _sees(positions[None], positions[None], window)
    return Block(places, places, None, windowed)


def _completions(packed: PackedBatch, batch: SequenceBatch, rows: list[int], window: int | None) -> Block:
    """The completions of ``rows``, which see themselves and their prompts."""
    lengths, prompts = batch.sequence_lengths[rows, None], batch.prompt_lengths[rows, None]
    asking = torch.arange(max(int((lengths - prompts).max()), 1), device=lengths.device) + prompts
    asked = torch.arange(int(prompts.max()), device=lengths.device).expand(len(rows), -1)
    keys = torch.cat([asking.where(asking < lengths, FAR), asked.where(asked < prompts, FAR)], dim=1)
    # Queries of padding ask from where the sequence ends: one that saw nothing would give NaN.
    queries = asking.minimum(lengths - 1)
    padded = torch.nn.functional.pad(packed.places[rows], (0, 1), value=packed.input_ids.shape[1])
    places = padded.gather(1, keys.clamp(max=padded.shape[1] - 1))
    windowed = window is not None and int(lengths.max()) > window
    return Block(
        places[:, : asking.shape[1]],
        places,
        _sees(queries, keys, FAR),
        _sees(queries, keys, window) if windowed else None,
    )


def _sees(queries: Tensor, keys: Tensor, window: int) -> Tensor:
    """Whether tokens at positions ``[b, q]`` see those at positions ``[b, k]``: ``[b, 1, q, k]``."""
    distance = queries[:, :, None] - keys[:, None]
    return ((distance >= 0) & (distance < window))[:, None]


def use_packed_sdpa(model: PreTrainedModel) -> bool:
    """Have ``model`` use ``packed_sdpa`` in the place of ``sdpa``; False if its attention is another."""
    if model.config._attn_implementation == "sdpa" and model._can_set_attn_implementation():
        model.set_attn_implementation(PACKED_SDPA)
    return bool(model.config._attn_implementation == PACKED_SDPA)


def packed_sdpa(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    spread_over: Spread | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' ``sdpa`` over the sequences of a packed row; of any other input, ``sdpa`` itself.

    Args:
        module: the attention layer.
        query: ``[1, heads, N, D]``.
        key: ``[1, key heads, N, D]``.
        value: ``[1, key heads, N, D]``.
        attention_mask: ignored if there is a ``spread_over``.
        spread_over: the sequences of the row; None if it is no packed one.
        kwargs: dropout, scaling, sliding_window and what else ``sdpa`` takes.

    Returns:
        ``[1, N, heads, D]``, and None for the attention's weights.
    """
    if spread_over is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    if spread_over.exceeded is not None and "sliding_window" not in kwargs:
        raise UserError(
            f"--model.packing true: {type(module).__name__} does not say which of its layers have the sliding window "
            f"of {spread_over.exceeded} tokens that sequences exceed; set --model.packing false"
        )
    slides = kwargs.get("sliding_window") is not None
    heads = [part.shape[1] for part in (query, key, value)]
    by_token = [part[0].transpose(0, 1).flatten(1) for part in (query, key, value)]
    outputs = []
    for block in spread_over.blocks:
        places = (block.queries, block.keys, block.keys)
        # As an embedding: of all that picks rows, it has by far the fastest backward pass.
        picked = [embedding(at, tokens) for at, tokens in zip(places, by_token, strict=True)]
        parts = [part.unflatten(2, (n, -1)).transpose(1, 2) for part, n in zip(picked, heads, strict=True)]
        mask = block.windowed if slides and block.windowed is not None else block.mask
        output, _ = sdpa_attention_forward(module, *parts, mask, **kwargs | {"is_causal": mask is None})
        outputs.append(output.flatten(0, 1).flatten(1))
    return embedding(spread_over.back, torch.cat(outputs)).unflatten(1, (heads[0], -1))[None], None


AttentionInterface.register(PACKED_SDPA, packed_sdpa)
AttentionMaskInterface.register(PACKED_SDPA, sdpa_mask)
