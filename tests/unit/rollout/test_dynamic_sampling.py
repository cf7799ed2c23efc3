"""Which groups a rollout keeps, in which order, and what becomes of their scores."""

from __future__ import annotations

import math

import pytest
import torch

from grpo_lightning import ranks
from grpo_lightning.advantages import group_centered
from grpo_lightning.rewards.scoring.runner import RewardScorer, Scores
from grpo_lightning.rollout.credit import CreditAssignment
from grpo_lightning.rollout.dynamic_sampling import GroupPool
from grpo_lightning.types import Completion, Prompt


def given(completions, scores, log_metric, log_count, log_extra, **_):
    log_metric("figure", scores[0][0])
    log_count("calls", 1)
    log_extra("shown", [row[i % 2] for i, row in enumerate(scores)])
    return [row[i % 2] for i, row in enumerate(scores)]


given.inline = True  # type: ignore[attr-defined]
SCORER = RewardScorer([given])


def add(pool: GroupPool, positions: list[int], rewards: list[list[float | None]]) -> None:
    """Groups of two completions with these rewards."""
    prompts = [
        Prompt(token_ids=[1], text=f"q{p}", columns={"scores": row}) for p, row in zip(positions, rewards, strict=True)
    ]
    groups = [
        [Completion(token_ids=[1], logprobs=[0.0], finished=True, text=f"{p}{g}") for g in "ab"] for p in positions
    ]
    scores = SCORER.score(prompts, groups)
    pool.add(positions, prompts, groups, scores, teaches=CreditAssignment(group_centered).teaches(scores, groups))


def test_groups_that_teach_are_kept_in_the_order_of_their_prompts() -> None:
    pool = GroupPool(2)
    add(pool, [0, 1], [[1, 1], [0, 1]])
    assert not pool.full
    add(pool, [2, 3], [[0, 0], [1, 0]])
    assert pool.full
    assert [group.position for group in pool.share()] == [1, 3]


def test_more_than_enough_are_cut_off_by_position_and_too_few_filled_up() -> None:
    pool = GroupPool(2)
    add(pool, [0, 1, 2], [[1, 0], [0, 1], [2, 1]])
    assert [group.position for group in pool.share()] == [0, 1]
    pool = GroupPool(3)
    add(pool, [0, 1, 2, 3], [[1, 1], [0, 0], [None, None], [2, 1]])
    assert not pool.full
    assert [(group.position, group.teaches) for group in pool.share()] == [(0, False), (1, False), (3, True)]


def test_groups_are_dealt_to_ranks_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, other = GroupPool(4), GroupPool(4)
    add(pool, [0, 2, 4], [[1, 1], [0, 1], [0, 1]])
    add(other, [1, 3, 5], [[0, 1], [0, 0], [0, 1]])
    both = pool.groups + other.groups
    monkeypatch.setattr(ranks, "gather_objects", lambda _: both)
    monkeypatch.setattr(ranks, "all_sum", lambda own: own + 2)
    monkeypatch.setattr(ranks, "world_size", lambda: 2)
    assert pool.full
    shares = []
    for rank in (0, 1):
        monkeypatch.setattr(ranks, "rank", lambda rank=rank: rank)
        shares.append([group.position for group in pool.share()])
    assert shares == [[1, 4], [2, 5]]


def test_scores_follow_their_groups_and_figures_are_of_all_tries() -> None:
    pool = GroupPool(2)
    add(pool, [0, 1], [[1, 1], [0, 1]])
    add(pool, [2, 3], [[4, 5], [None, 7]])
    scores: Scores = pool.scores_of(pool.share())
    assert scores.total == [[0.0, 1.0], [4.0, 5.0]]
    assert scores.terms == {"given": [[0.0, 1.0], [4.0, 5.0]]}
    assert scores.columns == {"shown": [0, 1, 4, 5]}
    assert scores.metrics == {"figure": [1, 4]}
    assert scores.counts == {"rewards/given/calls": 2}
    everything = torch.tensor(pool.scores_of(pool.groups).total)
    assert everything.shape == (4, 2)
    assert math.isnan(everything[3, 0])
