"""Where completion tokens stand in a batch, and how rows are picked."""

from __future__ import annotations

import dataclasses

import torch

from grpo_lightning.types import PromptBatch, RolloutBatch, SequenceBatch


def _batch() -> RolloutBatch:
    """Prompts of 2, 1 and 3 tokens; completions of 3, 1 and 2."""
    return RolloutBatch(
        input_ids=torch.tensor([[7, 8, 1, 2, 3], [9, 4, 0, 0, 0], [5, 5, 5, 6, 6]]),
        sequence_lengths=torch.tensor([5, 2, 5]),
        prompt_lengths=torch.tensor([2, 1, 3]),
        completion_mask=torch.tensor([[1.0, 1, 1], [1, 0, 0], [1, 1, 0]]),
        advantages=torch.tensor([[1.0], [2.0], [3.0]]),
        sampling_logprobs=torch.tensor([[-1.0, -2, -3], [-4, 0, 0], [-5, -6, 0]]),
    )


def test_completion_tokens_are_found_where_they_stand() -> None:
    batch = _batch()
    assert batch.completion_positions.tolist() == [[2, 3, 4], [1, 2, 3], [3, 4, 4]]
    assert (batch.completion_ids * batch.completion_mask).tolist() == [[1, 2, 3], [4, 0, 0], [6, 6, 0]]


def test_attention_covers_prompt_and_completion() -> None:
    assert _batch().attention_mask.tolist() == [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 1, 1, 1, 1]]


def test_rows_are_trimmed_to_their_own_longest() -> None:
    picked = _batch().rows(torch.tensor([1]))
    assert isinstance(picked, RolloutBatch)
    assert picked.input_ids.tolist() == [[9, 4]]
    assert picked.completion_mask.tolist() == [[1.0]]
    assert picked.sampling_logprobs.tolist() == [[-4.0]]
    assert picked.advantages.tolist() == [[2.0]]
    assert picked.old_logprobs is None
    # A long prompt with a short completion: the sequence and the completion are trimmed each by itself.
    picked = _batch().rows(torch.tensor([2, 1]))
    assert picked.input_ids.tolist() == [[5, 5, 5, 6, 6], [9, 4, 0, 0, 0]]
    assert picked.completion_mask.tolist() == [[1.0, 1.0], [1.0, 0.0]]
    assert len(picked) == 2


def test_advantages_per_token_are_trimmed_like_the_mask() -> None:
    batch = dataclasses.replace(_batch(), advantages=torch.arange(9.0).reshape(3, 3))
    assert batch.rows(torch.tensor([2, 1])).advantages.tolist() == [[6.0, 7.0], [3.0, 4.0]]


def test_picking_rows_leaves_the_batch_alone() -> None:
    batch = _batch()
    picked = batch.rows(torch.tensor([0]))
    picked.loss_weights = torch.zeros(1, 3)
    picked.completion_mask[:] = 7
    assert batch.loss_weights is None
    assert batch.completion_mask.max().item() == 1.0


def test_an_empty_completion_keeps_one_masked_column() -> None:
    batch = SequenceBatch(
        input_ids=torch.tensor([[7, 8, 1], [9, 0, 0]]),
        sequence_lengths=torch.tensor([3, 1]),
        prompt_lengths=torch.tensor([2, 1]),
        completion_mask=torch.tensor([[1.0], [0.0]]),
    )
    picked = batch.rows(torch.tensor([1]))
    assert picked.completion_mask.tolist() == [[0.0]]
    assert picked.completion_positions.tolist() == [[0]]


def test_moves_every_tensor_and_keeps_its_kind() -> None:
    moved = _batch().to("meta")
    assert isinstance(moved, RolloutBatch)
    assert {
        getattr(moved, f.name).device.type for f in dataclasses.fields(moved) if getattr(moved, f.name) is not None
    } == {"meta"}
    assert moved.ref_logprobs is None


def test_a_prompt_batch_numbers_its_prompts_by_default() -> None:
    assert PromptBatch(["a", "b"]).positions == [0, 1]  # type: ignore[list-item]
    batch = PromptBatch(["a", "b"], [4, 6])  # type: ignore[list-item]
    assert batch.positions == [4, 6]
    assert len(batch) == 2
    assert batch.rollout is None


def test_a_row_at_weight_zero_is_trained_but_not_counted() -> None:
    batch = _batch()
    batch.loss_weights = torch.tensor([[0.5, 0.25, 0.25], [0, 0, 0], [0.1, 0.2, 0]])
    assert batch.counted.tolist() == [[1, 1, 1], [0, 0, 0], [1, 1, 0]]
