"""Advantages by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_lightning.advantages import (
    decoupled,
    group_centered,
    group_normalized,
    group_std,
    leave_one_out,
    per_step,
    zero_spread,
)
from grpo_lightning.errors import UserError

NAN = math.nan


def _rows(advantages: torch.Tensor) -> list:
    return [pytest.approx(row, abs=1e-6) for row in advantages.tolist()]


def test_uses_the_sample_standard_deviation_and_epsilon_1e_4() -> None:
    rewards = torch.tensor([[1.0, 0, 0, 0]], dtype=torch.float64)
    # mean 1/4; sample variance (9/16 + 3/16) / 3 = 1/4, std 1/2. The population's std would give 1.7321.
    assert group_normalized(rewards, eps=0.0).tolist() == _rows(torch.tensor([[1.5, -0.5, -0.5, -0.5]]))
    assert group_normalized(rewards)[0, 0].item() == pytest.approx(0.75 / 0.5001, abs=1e-9)  # 1.4997
    pair = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    assert group_normalized(pair, eps=0.0)[0].tolist() == pytest.approx([0.70711, -0.70711], abs=1e-5)


def test_centered_divides_by_nothing() -> None:
    rewards = torch.tensor([[1.0, 0, 0, 0], [8.0, 0, 0, 0]])
    assert group_centered(rewards).tolist() == [[0.75, -0.25, -0.25, -0.25], [6.0, -2.0, -2.0, -2.0]]


def test_leave_one_out_compares_with_the_mean_of_the_others() -> None:
    rewards = torch.tensor([[1.0, 0, 0, 2.0], [1.0, 0.5, NAN, NAN], [NAN, NAN, 7.0, NAN]])
    # 1 - (0 + 0 + 2)/3, 0 - (1 + 0 + 2)/3, the same, 2 - 1/3; two known: 1 - 0.5 and 0.5 - 1; one has no others.
    expected = [[1 / 3, -1.0, -1.0, 5 / 3], [0.5, -0.5, 0.0, 0.0], [0.0] * 4]
    assert leave_one_out(rewards).tolist() == _rows(torch.tensor(expected))


@pytest.mark.parametrize("estimator", [group_normalized, group_centered, leave_one_out])
def test_each_prompt_has_its_own_baseline_whatever_the_order(estimator) -> None:
    rewards = torch.tensor([[1.0, 0.0], [1.0, 1.0], [5.0, 7.0]])
    advantages = estimator(rewards)
    assert advantages[1].tolist() == [0.0, 0.0]
    assert advantages[0, 0] > 0 > advantages[0, 1]
    for order in ([1, 0, 2], [2, 1, 0]):
        assert torch.equal(estimator(rewards[order]), advantages[order])


def test_the_same_question_twice_in_a_batch_stays_two_groups() -> None:
    # Together their mean would be 1/4 and three of the four would be punished.
    assert group_centered(torch.tensor([[1.0, 0.0], [0.0, 0.0]])).tolist() == [[0.5, -0.5], [0.0, 0.0]]


@pytest.mark.parametrize("estimator", [group_normalized, group_centered, leave_one_out])
@pytest.mark.parametrize(
    "group",
    [
        [1.0, 1.0, 1.0, 1.0],
        [0.0, 0.0, 0.0, 0.0],
        [0.3, 0.1 + 0.2, 0.3, 0.3],
        [1e6, 1e6 + 0.1, 1e6, 1e6],  # one unit of float32 at a million is 0.06
        [-0.1 * 3, -0.3, -0.3, -0.3],
    ],
)
def test_equal_rewards_up_to_rounding_teach_exactly_nothing(estimator, group: list[float]) -> None:
    rewards = torch.tensor([group], dtype=torch.float64)
    assert estimator(rewards).tolist() == [[0.0] * 4]
    assert zero_spread(rewards).tolist() == [True]


def test_a_small_but_real_spread_is_kept() -> None:
    rewards = torch.tensor([[0.001, 0.0, 0.0, 0.0]], dtype=torch.float64)
    assert group_normalized(rewards)[0, 0].item() == pytest.approx(0.00075 / 0.0006)
    assert zero_spread(rewards).tolist() == [False]


def test_a_missing_reward_is_left_out_and_has_no_advantage() -> None:
    rewards = torch.tensor([[1.0, NAN, 0.0, NAN], [NAN, NAN, NAN, 3.0], [NAN, NAN, NAN, NAN]], dtype=torch.float64)
    assert group_centered(rewards).tolist() == [[0.5, 0.0, -0.5, 0.0], [0.0] * 4, [0.0] * 4]
    expected = 0.5 / (math.sqrt(0.5) + 1e-4)
    assert group_normalized(rewards)[0].tolist() == pytest.approx([expected, 0.0, -expected, 0.0])
    assert group_normalized(rewards)[1:].tolist() == [[0.0] * 4, [0.0] * 4]
    assert group_std(rewards).tolist() == pytest.approx([math.sqrt(0.5), 0.0, 0.0])
    assert zero_spread(rewards).tolist() == [False, True, True]


@pytest.mark.parametrize("function", [group_normalized, group_centered, leave_one_out, group_std])
def test_a_group_of_one_is_refused(function) -> None:
    with pytest.raises(UserError, match=r"--rollout\.group_size 1"):
        function(torch.tensor([[1.0], [0.0]]))


def test_keeps_the_dtype_of_the_rewards() -> None:
    assert group_normalized(torch.tensor([[1.0, 0.0]])).dtype == torch.float32
    assert group_normalized(torch.tensor([[1.0, 0.0]], dtype=torch.float64)).dtype == torch.float64


@given(
    group=st.lists(st.integers(-20, 20), min_size=2, max_size=9),
    shift=st.integers(-1000, 1000),
    factor=st.sampled_from([0.5, 2.0, 8.0]),
)
def test_advantages_sum_to_zero_and_ignore_an_offset(group: list[int], shift: int, factor: float) -> None:
    rewards = torch.tensor([group], dtype=torch.float64)
    for estimator in (group_normalized, group_centered, leave_one_out):
        advantages = estimator(rewards)
        assert advantages.sum().item() == pytest.approx(0.0, abs=1e-9)
        torch.testing.assert_close(estimator(rewards + shift), advantages, rtol=0, atol=1e-9)
    for estimator in (group_centered, leave_one_out):
        torch.testing.assert_close(estimator(rewards * factor), estimator(rewards) * factor)


# --- several rewards, and rewards per step --------------------------------------------------------------------------


def test_decoupled_rewards_each_have_their_say() -> None:
    """GDPO's own example: (1, 1) and (1, 0) against (0, 0) have the same normalized sums, but not the same parts."""
    first = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    second = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    together = group_normalized(first + second, eps=0.0)
    assert together[0].tolist() == pytest.approx(together[1].tolist())
    # Each by itself: ±0.70711 and ±0.70711 in the first group, ±0.70711 and 0 in the second. The sums are ±1.41421 and
    # ±0.70711; over the batch their mean is 0 and their sample variance (2·2 + 2·0.5) / 3 = 5/3.
    advantages = decoupled([first, second], weights=[1.0, 1.0], estimator=lambda r: group_normalized(r, eps=0.0), eps=0)
    size = 2**0.5 / (5 / 3) ** 0.5
    assert advantages.tolist() == _rows(torch.tensor([[size, -size], [size / 2, -size / 2]]))


def test_a_weight_decides_how_much_a_decoupled_reward_says() -> None:
    terms = [torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 100.0]])]  # the second is a hundred times as large
    assert decoupled(terms, weights=[2.0, 1.0], estimator=group_normalized)[0, 0] > 0
    assert decoupled(terms, weights=[1.0, 2.0], estimator=group_normalized)[0, 0] < 0
    assert decoupled(terms, weights=[1.0, 1.0], estimator=lambda r: group_normalized(r, eps=0.0)).tolist() == [[0, 0]]


def test_a_group_without_signal_gets_exactly_nothing_from_decoupled_rewards() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        terms = [torch.rand(5, 7, generator=generator, dtype=torch.float64) for _ in range(2)]
        for term in terms:
            term[2] = 0.3
        advantages = decoupled(terms, weights=[0.7, 1.3], estimator=group_normalized)
        assert advantages[2].tolist() == [0.0] * 7
        assert (advantages[[0, 1, 3, 4]] != 0).all()


def test_decoupled_rewards_that_are_missing() -> None:
    terms = [torch.tensor([[1.0, 0.0, NAN, NAN]]), torch.tensor([[NAN, NAN, 1.0, NAN]])]
    # The second reward is known once, so it has no spread: sums 0.70711, -0.70711, 0, and nothing for the fourth.
    advantages = decoupled(terms, weights=[1.0, 1.0], estimator=lambda r: group_normalized(r, eps=0.0), eps=0.0)
    assert advantages[0].tolist() == pytest.approx([1.0, -1.0, 0.0, 0.0], abs=1e-6)


def test_steps_pay_the_tokens_up_to_their_ends() -> None:
    """DeepSeekMath, 4.1.3, with centered rewards: steps of both completions together have mean 0.5."""
    rewards = torch.tensor([[[1.0, 0.0], [0.5, NAN]]], dtype=torch.float64)
    ends = torch.tensor([[[1, 3], [2, 0]]])
    advantages = per_step(rewards, ends=ends, estimator=group_centered, length=5)
    # +0.5 ends at token 1 and -0.5 at token 3; the other completion's only step is the mean.
    assert advantages.tolist() == [[[0.0, 0.0, -0.5, -0.5, 0.0], [0.0] * 5]]
    normalized = per_step(rewards, ends=ends, estimator=lambda r: group_normalized(r, eps=0.0), length=5)
    assert normalized[0, 0].tolist() == pytest.approx([0.0, 0.0, -1.0, -1.0, 0.0])  # sample std of 1, 0, 0.5 is 0.5
