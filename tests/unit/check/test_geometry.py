"""A run's numbers in words, by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from grpo_lightning.check.geometry import Plan, cut, largest_micro_batch, micro_batches, sentences
from grpo_lightning.functional.reduction import token_mean
from grpo_lightning.types import Layout, Prompt

PLAN = Plan(
    prompts=32,
    group_size=8,
    windows=2,
    passes=2,
    ranks=4,
    prompt_length=100.0,
    completion_limit=200,
    rollouts=50.0,
)


def data(prompts: int, *, tokens: int = 4, tries: int = 1, per_step: int = 32) -> Any:
    made = [Prompt(token_ids=[i] * tokens, text="", columns={}) for i in range(prompts)]
    return SimpleNamespace(train_prompts=made, tries=tries, prompts_per_step=per_step)


def test_sentences() -> None:
    assert sentences(PLAN, data(1000), micro_batches="3 micro-batches") == [
        "A rollout is 32 prompts x 8 completions = 256, on 4 ranks, 8 prompts each.",
        "It is cut into 2 windows and gone through twice: 4 optimizer steps a rollout, of 16 prompts (128 completions) "
        "each.",
        "An optimizer step takes 3 micro-batches on each rank.",
        "1,000 prompts make 31 rollouts an epoch.",
        "The run is 200 optimizer steps = 50 rollouts, 1,600 prompts (160,000 tokens) and 12,800 completions of at "
        "most 200 tokens (2,560,000 in all).",
    ]
    assert (PLAN.completions, PLAN.steps) == (256, 4)
    drawn_again = sentences(PLAN, data(1000, tries=3), micro_batches="")
    assert "1,000 prompts make 10 rollouts an epoch." in drawn_again
    assert "Groups whose rewards are all alike are drawn again, from up to 3 x the prompts." in drawn_again


def rollout(micro_batch_tokens: int, *, group: int = 2, limit: int = 16, updates: int = 1) -> Any:
    return SimpleNamespace(
        micro_batch_tokens=micro_batch_tokens,
        group_size=group,
        reduction=token_mean,
        updates=updates,
        sampling=SimpleNamespace(max_completion_length=limit),
    )


@pytest.mark.parametrize(
    ("layout", "bound", "expected"),
    [
        ("padded", 20, 4),  # 2 prompts x 2 completions, each of 4 + 16 tokens
        ("padded", 40, 2),
        ("packed", 80, 1),
        ("shared", 36, 2),  # a prompt of 4 tokens and two completions
        ("shared", 35, 4),  # not both
    ],
)
def test_micro_batches_are_cut_as_in_the_run(layout: Layout, bound: int, expected: int) -> None:
    assert cut([[1] * 4, [2] * 4], rollout=rollout(bound), completion=16, layout=layout) == expected


def test_a_large_rollout_is_estimated() -> None:
    """8 prompts of 1,000 tokens, 64 completions of 100,000 each: 51.2 million tokens, in parts of a million."""
    large = rollout(1_000_000, group=64)
    prompts = [[1] * 1000] * 8
    assert cut(prompts, rollout=large, completion=100_000, layout="shared") == 52
    assert cut(prompts, rollout=large, completion=100_000, layout="padded") == 52
    few = rollout(100_000_000, group=64)
    assert cut(prompts, rollout=few, completion=100_000, layout="shared") == 1


def test_micro_batches_of_a_ranks_window() -> None:
    """8 prompts on 2 ranks in 2 windows: 2 prompts, 4 completions of 4 + 2 or 4 + 16 tokens."""
    found = micro_batches(rollout(20, updates=2), cast(Any, data(8, per_step=8)), ranks=2, layout="padded")
    assert found == "2 to 4 micro-batches of at most 20 tokens (completions of 2 to 16)"
    found = micro_batches(rollout(400, updates=2), data(8, per_step=8), ranks=2, layout="padded")
    assert found == "1 micro-batch of at most 400 tokens (completions of 2 to 16)"


def test_the_largest_micro_batch() -> None:
    assert largest_micro_batch(PLAN, 4096) == 4096
    assert largest_micro_batch(PLAN, 200) == 300, "one sequence at least"
    assert largest_micro_batch(PLAN, 100_000) == 300 * 256 // 2 // 4, "no more than a rank's part of a window"
