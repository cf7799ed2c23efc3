"""From scored completions to optimizer steps: windows, micro-batches and loss weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grpo_lightning import ranks
from grpo_lightning.errors import UserError
from grpo_lightning.functional.reduction import Reduction
from grpo_lightning.types import BatchT, Layout, SequenceBatch, Window


def cut_windows(
    batch: BatchT,
    *,
    updates: int,
    micro_batch_tokens: int,
    reduction: Reduction,
    max_completion_length: int,
    keep: Tensor | None = None,
    layout: Layout = "padded",
) -> list[Window[BatchT]]:
    """Cut this rank's rows into ``updates`` windows in prompt order, each one optimizer step.

    Loss weights are made from the totals of the whole window over all ranks, *before* rows are dropped, so that the
    gradient does not depend on how rows are spread over micro-batches and ranks. They are multiplied by the number of
    ranks, since DDP and FSDP average gradients over ranks.

    Args:
        batch: rows in prompt order; a multiple of ``updates`` rows.
        updates: windows (U).
        micro_batch_tokens: most tokens in one forward and backward, as ``layout`` counts them.
        reduction: what each token counts (``functional.reduction``).
        max_completion_length: length limit of a completion, for ``constant_length``.
        keep: False for a row that needs no backward; None keeps all, ``[B]``.
        layout: how the policy computes sequences (``--model.packing``).

    Returns:
        Windows; every rank has the same number of micro-batches in each.
    """
    assert len(batch) % updates == 0, f"{len(batch)} rows do not divide into {updates} windows"
    windows = []
    for index in torch.arange(len(batch)).chunk(updates):
        totals = torch.tensor([batch.completion_mask[index].sum(), len(index)], dtype=torch.float64)
        tokens, sequences = ranks.all_sum(totals).tolist()
        part = batch.rows(index)
        weights = reduction(part.completion_mask, tokens=tokens, sequences=sequences, max_length=max_completion_length)
        _require(weights, part.completion_mask.shape, reduction)
        part.loss_weights = ranks.world_size() * weights
        kept = torch.arange(len(index)) if keep is None else keep[index].nonzero().squeeze(1)
        windows.append(Window(micro_batches=_micro_batches(part, kept, micro_batch_tokens, layout), tokens=tokens))
    return windows


def _require(weights: Any, shape: torch.Size, reduction: Any) -> None:
    """Refuse weights that would be broadcast to nonsense or stop every step: the reduction may be the user's own."""
    name = getattr(reduction, "__name__", type(reduction).__name__)
    if not isinstance(weights, Tensor) or weights.shape != shape:
        given = list(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
        raise UserError(
            f"--rollout.reduction {name} returned {given} for a mask {list(shape)}: return one for each token"
        )
    if not weights.isfinite().all():
        raise UserError(f"--rollout.reduction {name} returned NaN or infinite weights")


def by_length(lengths: Sequence[int], micro_batch_tokens: int) -> list[list[int]]:
    """Group padded rows so that a group's size, rows times the longest, stays within the bound.

    Rows are sorted by length and cut contiguously: rows of like length pad little. On a long-tailed batch this costs
    about half the padded tokens of filling bins longest-first. A row above the bound is a group by itself.

    Args:
        lengths: tokens of each row.
        micro_batch_tokens: bound on a group's size.

    Returns:
        Row numbers of each group, the longest rows first, so that running out of memory shows at once.
    """
    groups: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if not groups or (len(groups[-1]) + 1) * lengths[groups[-1][0]] > micro_batch_tokens:
            groups.append([])
        groups[-1].append(row)
    return groups


def by_prompt(
    prompts: Sequence[int], completions: Sequence[int], new_prompts: Sequence[bool], micro_batch_tokens: int
) -> list[list[int]]:
    """Group rows that are not padded so that the sum of their tokens stays within the bound.

    Rows that share a prompt stay together, since it is computed once for each group; only if they exceed the bound are
    they parted, and each part brings the prompt again. Each that shares it counts a sixteenth of it more, about what
    its attention's copies of the prompt's keys take beside a token's other states. Parts fill groups first-fit, the
    largest first. A row above the bound is a group by itself.

    Args:
        prompts: tokens of each row's prompt.
        completions: tokens of each row's completion.
        new_prompts: False in a row that has the prompt of the row before it.
        micro_batch_tokens: bound on a group's size.

    Returns:
        Row numbers of each group, the largest part first.
    """
    parts: list[tuple[int, list[int]]] = []
    for row, (prompt, completion, new) in enumerate(zip(prompts, completions, new_prompts, strict=True)):
        shared = completion + prompt // 16
        if new or parts[-1][0] + shared > micro_batch_tokens:
            parts.append((prompt + completion, [row]))
        else:
            size, rows = parts[-1]
            parts[-1] = (size + shared, [*rows, row])
    groups: list[list[int]] = []
    sizes: list[int] = []
    for size, rows in sorted(parts, key=lambda part: (-part[0], part[1])):
        fits = next((i for i, filled in enumerate(sizes) if filled + size <= micro_batch_tokens), None)
        if fits is None:
            groups.append(rows)
            sizes.append(size)
        else:
            groups[fits] += rows
            sizes[fits] += size
    return groups


def _micro_batches(part: BatchT, kept: Tensor, micro_batch_tokens: int, layout: Layout) -> list[BatchT]:
    groups = _grouped(part.rows(kept), micro_batch_tokens, layout) if len(kept) else []
    batches = [part.rows(kept[torch.tensor(group)]) for group in groups]
    most = int(ranks.all_max(torch.tensor(len(batches))))
    # A rank that has nothing left to do must still run as many backwards as the others, or their collectives hang.
    return batches + [_idle(part) for _ in range(most - len(batches))]


def _grouped(batch: SequenceBatch, micro_batch_tokens: int, layout: Layout) -> list[list[int]]:
    lengths, prompts = batch.sequence_lengths, batch.prompt_lengths
    if layout == "padded":
        return by_length(lengths.tolist(), micro_batch_tokens)
    new_prompts = batch.new_prompts if layout == "shared" else torch.ones_like(lengths, dtype=torch.bool)
    return by_prompt(prompts.tolist(), (lengths - prompts).tolist(), new_prompts.tolist(), micro_batch_tokens)


def _idle(part: BatchT) -> BatchT:
    """One short row at weight 0: keeps this rank in step and changes nothing."""
    shortest = part.sequence_lengths.argmin().reshape(1)
    row = part.rows(shortest)
    assert row.loss_weights is not None
    row.loss_weights = torch.zeros_like(row.loss_weights)
    return row


def pad_rows(
    prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]], *, pad_token_id: int
) -> SequenceBatch:
    """Token lists to one right-padded batch; every completion token is trained.

    Args:
        prompts: token ids of the prompts, one list per row.
        completions: token ids of the completions, one list per row.
        pad_token_id: fills the rest.
    """
    rows = [torch.tensor([*p, *c], dtype=torch.long) for p, c in zip(prompts, completions, strict=True)]
    longest = max(max(len(c) for c in completions), 1)
    mask = torch.zeros(len(rows), longest)
    for row, completion in zip(mask, completions, strict=True):
        row[: len(completion)] = 1
    return SequenceBatch(
        input_ids=torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad_token_id),
        sequence_lengths=torch.tensor([len(row) for row in rows]),
        prompt_lengths=torch.tensor([len(p) for p in prompts]),
        completion_mask=mask,
    )
