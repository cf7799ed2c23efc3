"""From scored completions to optimizer steps: windows, micro-batches and loss weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grpo_lightning import ranks
from grpo_lightning.errors import UserError
from grpo_lightning.functional.reduction import Reduction
from grpo_lightning.types import BatchT, SequenceBatch, Window


def cut_windows(
    batch: BatchT,
    *,
    updates: int,
    micro_batch_tokens: int,
    reduction: Reduction,
    max_completion_length: int,
    keep: Tensor | None = None,
    packed: bool = False,
) -> list[Window[BatchT]]:
    """Cut this rank's rows into ``updates`` windows in prompt order, each one optimizer step.

    Loss weights are made from the totals of the whole window over all ranks, *before* rows are dropped, so that the
    gradient does not depend on how rows are spread over micro-batches and ranks. They are multiplied by the number of
    ranks, since DDP and FSDP average gradients over ranks.

    Args:
        batch: rows in prompt order; a multiple of ``updates`` rows.
        updates: windows (U).
        micro_batch_tokens: most tokens in one forward and backward, padding included unless they are packed.
        reduction: what each token counts (``functional.reduction``).
        max_completion_length: length limit of a completion, for ``constant_length``.
        keep: False for a row that needs no backward; None keeps all, ``[B]``.
        packed: the policy computes sequences one behind the other (``--model.packing``).

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
        windows.append(Window(micro_batches=_micro_batches(part, kept, micro_batch_tokens, packed), tokens=tokens))
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


def balance(lengths: Sequence[int], micro_batch_tokens: int, *, packed: bool = False) -> list[list[int]]:
    """Group rows so that a group's size stays within the bound: rows times longest if padded, else the sum of lengths.

    Rows are sorted by length and cut contiguously: rows of like length pad little. On a long-tailed batch this costs
    about half the padded tokens of filling bins longest-first. A row above the bound is a group by itself.

    Args:
        lengths: tokens of each row.
        micro_batch_tokens: bound on a group's size.
        packed: rows are not padded.

    Returns:
        Row numbers of each group, the longest rows first, so that running out of memory shows at once.
    """
    groups: list[list[int]] = []
    size = 0
    for row in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        added = lengths[row] if packed or not groups else lengths[groups[-1][0]]
        if not groups or size + added > micro_batch_tokens:
            groups.append([])
            size, added = 0, lengths[row]
        groups[-1].append(row)
        size += added
    return groups


def _micro_batches(part: BatchT, kept: Tensor, micro_batch_tokens: int, packed: bool) -> list[BatchT]:
    groups = balance(part.sequence_lengths[kept].tolist(), micro_batch_tokens, packed=packed)
    batches = [part.rows(kept[torch.tensor(group)]) for group in groups]
    most = int(ranks.all_max(torch.tensor(len(batches))))
    # A rank that has nothing left to do must still run as many backwards as the others, or their collectives hang.
    return batches + [_idle(part) for _ in range(most - len(batches))]


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
