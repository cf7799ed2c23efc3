"""Credit by tokens: where rewards, penalties and values go, worked out by hand."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from grpo_lightning.advantages import TokenCredit, TokenEstimator, group_centered, group_normalized
from grpo_lightning.errors import UserError
from grpo_lightning.rewards.scoring.runner import RewardScorer, Scores
from grpo_lightning.rollout.credit import CreditAssignment
from grpo_lightning.types import Completion, Prompt

LENGTHS = [3, 1, 2, 0]
GROUPS = [[Completion(token_ids=[5] * n, logprobs=[-1.0] * n, finished=True) for n in LENGTHS]]
MASK = torch.tensor([[[1.0, 1, 1], [1, 0, 0], [1, 1, 0], [0, 0, 0]]])


def scores(*terms: tuple[str, list], weights: list[float] | None = None) -> Scores:
    """Of one group, by rewards of these names and results."""

    def named(name, result):
        def reward(**_):
            return result

        reward.__name__, reward.inline = name, True
        return reward

    scorer = RewardScorer([named(*term) for term in terms], reward_weights=weights)
    return scorer.score([Prompt(token_ids=[1], text="q")], GROUPS)


class Given(TokenEstimator):
    """Hands back what it was given."""

    needs_values = True

    def __call__(self, rewards: Tensor, *, mask: Tensor, values: Tensor | None = None) -> TokenCredit:
        self.rewards, self.mask, self.values = rewards, mask, values
        return TokenCredit(advantages=rewards * 10, returns=rewards + 100)


def test_the_kl_penalty_comes_off_the_reward_of_the_whole_completion() -> None:
    penalty = torch.tensor([[[0.1, 0.2, 0.0], [0.5, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]]).double()
    credit = CreditAssignment(group_centered).assign(
        scores(("right", [1.0, 1.0, 0.0, 0.0])), GROUPS, mask=MASK, penalty=penalty
    )
    # 1 - 0.3, 1 - 0.5, 0 and one without a token: their mean is 0.4.
    assert credit.advantages.flatten().tolist() == pytest.approx([0.3, 0.1, -0.4, 0.0])


def test_a_token_estimator_gets_rewards_at_the_last_token_and_penalties_where_they_arise() -> None:
    estimator = Given()
    penalty = torch.tensor([[[0.1, 0.2, 0.0], [0.5, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]]).double()
    values = torch.arange(12).reshape(1, 4, 3).double()
    credit = CreditAssignment(estimator).assign(
        scores(("right", [1.0, 2.0, None, 4.0]), ("steps", [[(0.5, 0)], None, None, None]), weights=[1.0, 3.0]),
        GROUPS,
        mask=MASK,
        penalty=penalty,
        values=values,
    )
    assert estimator.rewards[0, 0].tolist() == pytest.approx([3 * 0.5 - 0.1, -0.2, 1.0])
    assert estimator.rewards[0, 1].tolist() == pytest.approx([2.0 - 0.5, 0.0, 0.0])
    # The third has no reward and the fourth no token: neither is anything to go by.
    assert estimator.mask[0].tolist() == [[1, 1, 1], [1, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert credit.advantages.shape == (1, 4, 3)
    assert credit.returns is not None
    assert credit.returns[0, 1].tolist() == pytest.approx([101.5, 100, 100])
    assert credit.returns[0, 2].isnan().all()  # nothing for the critic to learn


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (lambda rewards: rewards[0], r"returned \[4\] for rewards \[1, 4\]: return a tensor of the same shape"),
        (lambda rewards: rewards.tolist(), "returned list for rewards"),
        (lambda rewards: rewards - rewards.mean(), "a missing reward is NaN and must get 0"),
    ],
)
def test_what_an_estimator_of_the_users_own_returns_is_looked_at(estimator, message) -> None:
    with pytest.raises(UserError, match=message):
        CreditAssignment(estimator).assign(scores(("right", [1.0, 0.0, None, 0.0])), GROUPS, mask=MASK)


def test_the_penalty_counts_also_where_every_reward_is_per_step() -> None:
    # Steps that are all alike teach nothing; penalties 3, 1 and 2 are compared with their mean, 2.
    penalty = torch.tensor([[[1.0, 1, 1], [1, 0, 0], [1, 1, 0], [0, 0, 0]]]).double()
    steps = ("steps", [[(1.0, 2)], [(1.0, 0)], [(1.0, 1)], None])
    credit = CreditAssignment(group_centered).assign(scores(steps), GROUPS, mask=MASK, penalty=penalty)
    assert credit.advantages[0, :, 0].tolist() == [-1.0, 1.0, 0.0, 0.0]


def test_a_token_estimator_of_the_users_own_is_looked_at_too() -> None:
    class Broken(TokenEstimator):
        def __call__(self, rewards: Tensor, *, mask: Tensor, values: Tensor | None = None) -> TokenCredit:
            return TokenCredit(advantages=rewards[..., :1])

    with pytest.raises(UserError, match=r"Broken returned \[1, 4, 1\] for rewards \[1, 4, 3\]"):
        CreditAssignment(Broken()).assign(scores(("right", [1.0] * 4)), GROUPS, mask=MASK)


MIRRORED = [("a", [1.0, 1.0, 0.0, 0.0]), ("b", [0.0, 0.0, 1.0, 1.0])]
"""Of the three with a token the totals are all 1, and what either is worth is taken back by the other."""
STEPS = [("steps", [[(1.0, 0), (0.0, 2)], [(0.5, 0)], [(0.5, 1)], None])]
"""Each has a mean of 0.5."""


@pytest.mark.parametrize(
    ("terms", "weights", "normalize_each", "teaches"),
    [
        (MIRRORED, None, False, False),
        (MIRRORED, None, True, False),
        (MIRRORED, [2.0, 1.0], True, True),
        ([("a", [2.0, 0.0, 1.0, 0.0]), ("b", [0.0, 1.0, 0.0, 0.0]), ("c", [0.0, 1.0, 1.0, 0.0])], None, False, False),
        ([("a", [2.0, 0.0, 1.0, 0.0]), ("b", [0.0, 1.0, 0.0, 0.0]), ("c", [0.0, 1.0, 1.0, 0.0])], None, True, True),
        ([("a", [1.0, 1.0, None, 1.0])], None, True, False),
        ([("a", [1.0, 1.0, 1.0, 0.0])], None, False, False),  # the fourth has no token
        # What only watches does not count.
        ([("a", [1.0, 1.0, 1.0, 1.0]), ("b", [0.0, 1.0, 0.0, 0.0])], [1.0, 0.0], True, False),
        ([("a", [1.0, 1.0, 1.0, 1.0]), *STEPS], [1.0, 0.0], False, False),
        (STEPS, None, False, True),
        ([("steps", [[(0.5, 0), (0.5, 2)], [(0.5, 0)], [(0.5, 1)], None])], None, False, False),
        (STEPS, None, True, True),  # nothing to normalize by itself
    ],
)
def test_which_groups_teach(terms, weights, normalize_each, teaches) -> None:
    assignment = CreditAssignment(group_normalized, normalize_each=normalize_each)
    scored = scores(*terms, weights=weights)
    assert assignment.teaches(scored, GROUPS).tolist() == [teaches]
    credit = assignment.assign(scored, GROUPS, mask=MASK)
    assert bool((credit.advantages != 0).any()) == teaches


@pytest.mark.parametrize(
    ("rewards", "finished", "teaches"),
    [
        ([1.0, 0.0, 0.5, 0.0], [False, False, True, False], False),  # what finished is as good as the mean
        ([1.0, 0.0, 0.5, 0.0], [False, False, False, False], False),
        ([1.0, 0.0, 0.5, 0.0], [True, False, False, False], True),
        ([1.0, 0.0, 0.0, 0.0], [False, True, True, False], True),
    ],
)
def test_a_group_teaches_only_what_is_trained_on(rewards, finished, teaches) -> None:
    cut = zip(GROUPS[0], finished, strict=True)
    groups = [[dataclasses.replace(completion, finished=whole) for completion, whole in cut]]
    assignment, scored = CreditAssignment(group_normalized), scores(("right", rewards))
    assert assignment.teaches(scored, groups, mask_truncated=True).tolist() == [teaches]
    assert assignment.teaches(scored, groups).tolist() == [True]
