"""What is asked of policy, reference and critic before the first step, and how it is laid out again."""

from __future__ import annotations

import pytest
import torch

from grpo_lightning.functional.logprobs import TokenScores
from grpo_lightning.functional.reduction import token_mean
from grpo_lightning.rollout.passes import Learner, dense, run_passes
from grpo_lightning.rollout.windows import cut_windows, pad_rows
from grpo_lightning.types import RolloutBatch, SequenceBatch, Window

LENGTHS = [3, 1, 2, 4]


def windows(*, micro_batch_tokens: int = 100, updates: int = 1) -> list[Window[RolloutBatch]]:
    rows = pad_rows([[1]] * 4, [[10 * i + t for t in range(n)] for i, n in enumerate(LENGTHS)], pad_token_id=0)
    batch = RolloutBatch(**vars(rows), advantages=torch.ones(4, 1), completion_numbers=torch.arange(4))
    return cut_windows(
        batch,
        updates=updates,
        micro_batch_tokens=micro_batch_tokens,
        reduction=token_mean,
        max_completion_length=4,
    )


def scored(batch: SequenceBatch) -> TokenScores:
    """The token's id as its entropy; minus that as its log-probability."""
    ids = batch.completion_ids * batch.completion_mask
    return TokenScores(-ids, ids)


def refuse(_: SequenceBatch) -> TokenScores:
    raise AssertionError("no pass is needed")


def test_nothing_is_asked_where_nothing_is_needed() -> None:
    cut = windows()
    run_passes(cut, Learner(score_old=refuse), off_policy=False, device="cpu")
    assert cut[0].micro_batches[0].old_logprobs is None


@pytest.mark.parametrize("changes", [{"reward_penalty": torch.sub}, {"top_entropy_quantile": 0.5}])
def test_a_kl_term_in_the_reward_and_a_mask_by_entropy_need_the_policys_pass(changes) -> None:
    cut = windows()
    run_passes(cut, Learner(score_old=scored, **changes), off_policy=False, device="cpu")
    assert cut[0].micro_batches[0].old_logprobs is not None


@pytest.mark.parametrize("micro_batch_tokens", [100, 6])
def test_the_tokens_of_the_highest_entropy_are_kept_whatever_the_micro_batches(micro_batch_tokens: int) -> None:
    cut = windows(micro_batch_tokens=micro_batch_tokens)
    run_passes(cut, Learner(score_old=scored, top_entropy_quantile=0.4), off_policy=False, device="cpu")
    kept = dense(cut, 4, 4, lambda batch: batch.entropy_mask)
    # Entropies 0 1 2, 10, 20 21, 30 31 32 33: the 60% quantile of these ten is 24.6 by interpolation.
    assert kept.tolist() == [[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]]


def test_figures_come_back_in_the_order_of_the_completions() -> None:
    cut = windows(micro_batch_tokens=6, updates=2)
    learner = Learner(score_old=scored, score_values=lambda batch: batch.completion_ids.float())
    assert learner.precedes_advantages
    run_passes(cut, learner, off_policy=True, device="cpu")
    laid_out = dense(cut, 4, 5, lambda batch: batch.values)
    assert laid_out.tolist() == [[0, 1, 2, 0, 0], [10, 0, 0, 0, 0], [20, 21, 0, 0, 0], [30, 31, 32, 33, 0]]
    assert laid_out.dtype == torch.float64
