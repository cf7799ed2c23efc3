"""Sequences one behind the other in a single row: nothing is computed for padding, and a group's prompt only once.

A batch of B sequences becomes one row of N tokens: each prompt that differs from the one of the sequence before it,
followed by the completions that share it. Positions restart with each sequence. So a group of G completions with a
prompt of p tokens costs p tokens instead of G · p. The prompt's states are those of every sequence that shares it,
since no token sees a later one; in the backward pass their gradients add up. Who sees whom is settled by the attention
implementation:

- ``sdpa``: by ``packed_sdpa``, which spreads queries, keys and values over padded blocks of sequences of like length,
  for the attention alone. (Under a mask over the whole row the attention of 64 sequences would cost 64 times as much,
  in a small model more than everything else.)
- ``flash_attention_2``: by its kernel for sequences of unequal lengths, which transformers calls where positions
  restart. It knows no shared prompts: there every sequence brings its own.
- Others (``eager``) would need that mask, and are padded.

A model that carries a state from token to token (Mamba, convolutions), makes its positions of the mask (ALiBi) or makes
masks of its own cannot be packed; ``Policy.verify`` finds out.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from grpo_lightning.types import SequenceBatch

FAR = 2**30
"""A position behind everything, which nothing sees."""


class Block(NamedTuple):
    """Some sequences, or parts of them, that ``packed_sdpa`` computes together: b of them, padded to like length."""

    queries: Tensor
    """Where in the row each stands, N for padding, ``[b, q]``."""
    keys: Tensor
    """The same of the tokens that they may see, ``[b, k]``."""
    mask: Tensor | None
    """True where a query sees a key, ``[b, 1, q, k]``; None where they are the same tokens in causal order."""
    windowed: Tensor | None
    """``mask`` in a layer with a sliding window; None where that is no narrower, ``[b, 1, q, k]``."""


class Spread(NamedTuple):
    """How ``packed_sdpa`` gets from a packed row to padded blocks and back."""

    blocks: list[Block]
    """Every token of the row is a query in one of them, or with the same result in several."""
    queries: Tensor
    """Those of all blocks, flattened one behind the other, ``[Q]``."""
    keys: Tensor
    """Those of all blocks, flattened one behind the other, ``[K]``."""
    back: Tensor
    """Where in ``queries`` each token of the row is found, ``[N]``."""
    window: int | None
    """Sliding window that some of the model's layers have, in tokens."""


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

    A prompt of three tokens, abc, with the completions xy and UVWXZ, packed to N = 10::

        place     0  1  2  3  4  5  6  7  8  9
        token     a  b  c  x  y  U  V  W  X  Z
        position  0  1  2  3  4  3  4  5  6  7

                                            queries           keys
        abcUVWXZ, a long completion: whole  0 1 2 5 6 7 8 9   the same, in causal order
        abc, the prompt of short ones       0 1 2             the same, in causal order
        xy, a short completion alone        3 4               3 4 0 1 2, under a mask

    So Q = 13 and K = 16. The prompt was asked twice, with the same result, and ``back`` takes the first: 0 1 2 for abc,
    11 12 for xy, 3 to 7 for UVWXZ.

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
    queries = torch.cat([block.queries.flatten() for block in blocks])
    keys = torch.cat([block.keys.flatten() for block in blocks])
    numbers = torch.arange(len(queries), device=queries.device)
    # Of several places the first, so that it is always the same one.
    count = packed.input_ids.shape[1]
    back = numbers.new_full((count + 1,), len(numbers)).scatter_reduce_(0, queries, numbers, "amin")[:count]
    # Padding takes the row's last token: any finite values do where nothing looks.
    return Spread(blocks, queries.clamp(max=count - 1), keys.clamp(max=count - 1), back, window)


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
    # Compared, not subtracted from each other: the differences of all pairs would take eight times the result.
    queries, oldest, keys = queries[:, :, None], (queries - window)[:, :, None], keys[:, None]
    return ((keys <= queries) & (keys > oldest))[:, None]


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
        attention_mask: a single entry that stands for none if there is a ``spread_over``.
        spread_over: the sequences of the row; None if it is no packed one.
        kwargs: dropout, scaling, sliding_window and what else ``sdpa`` takes.

    Returns:
        ``[1, N, heads, D]``, and None for the attention's weights.

    Raises:
        ValueError: if the layer has a mask or a window that it does not tell of.
    """
    if spread_over is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    if attention_mask is not None and attention_mask.numel() != 1:
        raise ValueError(f"{type(module).__name__} makes a mask of its own")
    if spread_over.window is not None and "sliding_window" not in kwargs:
        raise ValueError(f"{type(module).__name__} does not say whether it has the sliding window")
    slides = kwargs.get("sliding_window") is not None
    queries = _picked(query, spread_over.queries, [block.queries for block in spread_over.blocks])
    keys, values = (_picked(x, spread_over.keys, [block.keys for block in spread_over.blocks]) for x in (key, value))
    outputs = []
    for block, *states in zip(spread_over.blocks, queries, keys, values, strict=True):
        mask = block.windowed if slides and block.windowed is not None else block.mask
        output, _ = sdpa_attention_forward(module, *states, mask, **kwargs | {"is_causal": mask is None})
        outputs.append(output.flatten(0, 1).flatten(1))
    return embedding(spread_over.back, torch.cat(outputs)).unflatten(1, (query.shape[1], -1))[None], None


def _picked(states: Tensor, places: Tensor, blocks: list[Tensor]) -> list[Tensor]:
    """States of a packed row, ``[1, heads, N, D]``, for each block of places ``[b, s]``: ``[b, heads, s, D]``."""
    # As an embedding: of all that picks rows, it has by far the fastest backward pass.
    parts = embedding(places, states[0].transpose(0, 1).flatten(1)).split([block.numel() for block in blocks])
    shapes = [(*block.shape, states.shape[1], -1) for block in blocks]
    return [part.view(shape).transpose(1, 2) for part, shape in zip(parts, shapes, strict=True)]


# Under the same name: some models ask for it, and compute something else under any other. What is no packed row goes to
# transformers' own.
AttentionInterface.register("sdpa", packed_sdpa)
