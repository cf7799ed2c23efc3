"""Credit of tokens, by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_lightning.advantages import ReinforcePlusPlus
from grpo_lightning.advantages.tokens import returns_to_go, whitened
from grpo_lightning.errors import UserError

NAN = math.nan


def test_a_return_is_what_a_token_and_all_later_ones_earn() -> None:
    rewards = torch.tensor([[[1.0, 2.0, 4.0], [-0.5, 1.0, 9.0]]], dtype=torch.float64)
    mask = torch.tensor([[[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]]])
    assert returns_to_go(rewards, mask=mask, gamma=1.0).tolist() == [[[7.0, 6.0, 4.0], [0.5, 1.0, 0.0]]]
    # 1 + 2/2 + 4/4 = 3, 2 + 4/2 = 4, 4; -1/2 + 1/2 = 0, 1.
    assert returns_to_go(rewards, mask=mask, gamma=0.5).tolist() == [[[3.0, 4.0, 4.0], [0.0, 1.0, 0.0]]]


def test_reinforce_pp_whitens_the_returns_over_the_tokens_of_the_batch() -> None:
    """Right answers of 1 and 2 tokens and a wrong one of 1, with a KL penalty on the longest one's first token."""
    rewards = torch.tensor([[[1.0, 0.0], [-1.0, 1.0]], [[0.0, 0.0], [NAN, NAN]]], dtype=torch.float64)
    mask = torch.tensor([[[1.0, 0.0], [1.0, 1.0]], [[1.0, 0.0], [0.0, 0.0]]])
    # Returns 1, 0, 1, 0: mean 1/2, sample variance (4/4) / 3 = 1/3.
    size = 0.5 / (1 / math.sqrt(3) + 1e-4)
    credit = ReinforcePlusPlus()(rewards, mask=mask)
    expected = [[[size, 0.0], [-size, size]], [[-size, 0.0], [0.0, 0.0]]]
    assert credit.advantages.flatten().tolist() == pytest.approx(torch.tensor(expected).flatten().tolist())
    assert credit.returns is None
    # The longer completion counts more: with gamma 1 the mean is over tokens, not over completions.
    longer = torch.tensor([[[1.0, 0.0, 0.0]], [[0.0, 0.0, 0.0]]], dtype=torch.float64)
    of_tokens = ReinforcePlusPlus(eps=0.0)(longer, mask=torch.tensor([[[1.0, 0, 0]], [[1.0, 1, 1]]])).advantages
    assert of_tokens[0, 0, 0].item() == pytest.approx(1.5)  # mean 1/4, sample std 1/2
    assert of_tokens[1, 0].tolist() == pytest.approx([-0.5] * 3)


def test_a_group_of_one_will_do_and_a_batch_without_spread_teaches_nothing() -> None:
    estimator = ReinforcePlusPlus()
    assert not estimator.needs_values
    two = estimator(torch.tensor([[[1.0]], [[0.0]]]), mask=torch.ones(2, 1, 1)).advantages
    assert two.flatten().tolist() == pytest.approx([0.7070, -0.7070], abs=1e-4)
    assert two.dtype == torch.float32
    for rewards in ([[[0.3]], [[0.1 + 0.2]]], [[[1.0]], [[NAN]]], [[[NAN]], [[NAN]]]):
        values = torch.tensor(rewards, dtype=torch.float64)
        assert estimator(values, mask=~values.isnan()).advantages.flatten().tolist() == [0.0, 0.0]


@given(
    rows=st.lists(st.lists(st.integers(-9, 9), min_size=4, max_size=4), min_size=2, max_size=6),
    shift=st.integers(-20, 20),
    seed=st.integers(0, 99),
)
def test_order_padding_and_the_size_of_the_rewards_change_nothing(rows: list[list[int]], shift: int, seed: int) -> None:
    rewards = torch.tensor(rows, dtype=torch.float64).unsqueeze(1)
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 5, (len(rows), 1, 1), generator=generator)
    mask = (torch.arange(4) < lengths).double()
    estimator = ReinforcePlusPlus(gamma=0.9, eps=1e-12)
    advantages = estimator(rewards, mask=mask).advantages
    assert advantages.sum().item() == pytest.approx(0.0, abs=1e-8)
    assert (advantages[mask == 0] == 0).all()
    order = torch.randperm(len(rows), generator=generator)
    torch.testing.assert_close(estimator(rewards[order], mask=mask[order]).advantages, advantages[order])
    torch.testing.assert_close(estimator(rewards * 4, mask=mask).advantages, advantages)
    wider = torch.cat([rewards, torch.full_like(rewards, NAN)], dim=2)
    padded = estimator(wider, mask=torch.cat([mask, torch.zeros_like(mask)], dim=2)).advantages
    torch.testing.assert_close(padded[..., :4], advantages)
    # Without discount a bonus at the end of every completion is in every return.
    plain = ReinforcePlusPlus()
    at_end = shift * (torch.arange(4) == lengths - 1)
    torch.testing.assert_close(
        plain(rewards + at_end, mask=mask).advantages, plain(rewards, mask=mask).advantages, rtol=0, atol=1e-6
    )


def test_whitened_values_of_any_shape() -> None:
    values = torch.tensor([3.0, 1.0, 100.0], dtype=torch.float64)
    assert whitened(values, mask=torch.tensor([1, 1, 0]), eps=0.0).tolist() == pytest.approx([2**-0.5, -(2**-0.5), 0])


@pytest.mark.parametrize("gamma", [0.0, -0.1, 1.1])
def test_a_discount_beyond_0_to_1_is_refused(gamma: float) -> None:
    with pytest.raises(UserError, match=rf"--rollout\.advantages\.gamma {gamma}"):
        ReinforcePlusPlus(gamma=gamma)
