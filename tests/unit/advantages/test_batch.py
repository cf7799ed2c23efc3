"""Advantages on the scale of the batch, by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_lightning.advantages import batch_normalized, group_centered, reinforce_pp_baseline
from grpo_lightning.errors import UserError

NAN = math.nan
ESTIMATORS = (batch_normalized, reinforce_pp_baseline)


def test_batch_normalized_divides_every_group_by_the_spread_of_all_rewards() -> None:
    rewards = torch.tensor([[1.0, 0.0], [3.0, 4.0]], dtype=torch.float64)
    # All four have mean 2, squared distances 1, 4, 1, 4 and sample variance 10/3.
    size = 0.5 / math.sqrt(10 / 3)
    assert batch_normalized(rewards, eps=0.0).flatten().tolist() == pytest.approx([size, -size, -size, size])
    assert batch_normalized(rewards)[0, 0].item() == pytest.approx(0.5 / (math.sqrt(10 / 3) + 1e-4), abs=1e-12)


def test_reinforce_pp_baseline_divides_by_the_spread_about_the_groups_means() -> None:
    rewards = torch.tensor([[1.0, 0.0], [3.0, 5.0]], dtype=torch.float64)
    # Less their groups' means: 1/2, -1/2, -1, 1; sample variance (1/4 + 1/4 + 1 + 1) / 3 = 5/6.
    unit = 1 / math.sqrt(5 / 6)
    advantages = reinforce_pp_baseline(rewards, eps=0.0).flatten().tolist()
    assert advantages == pytest.approx([unit / 2, -unit / 2, -unit, unit])
    assert reinforce_pp_baseline(rewards)[1, 1].item() == pytest.approx(1 / (math.sqrt(5 / 6) + 1e-4), abs=1e-12)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_group_without_spread_gets_exactly_nothing(estimator) -> None:
    rewards = torch.tensor([[0.3, 0.1 + 0.2, 0.3], [0.7, 0.1, 0.4], [1.0, 1.0, 1.0]], dtype=torch.float64)
    advantages = estimator(rewards)
    assert advantages[[0, 2]].tolist() == [[0.0] * 3] * 2
    assert advantages[1].abs().max() > 0.5
    assert estimator(torch.ones(2, 3)).tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_missing_rewards_count_nowhere(estimator) -> None:
    """Nor does a group without any."""
    rewards = torch.tensor([[1.0, 0.0, NAN], [NAN, 3.0, 5.0], [NAN] * 3], dtype=torch.float64)
    advantages = estimator(rewards)
    full = estimator(torch.tensor([[1.0, 0.0], [3.0, 5.0]], dtype=torch.float64))
    assert advantages[0, :2].tolist() == pytest.approx(full[0].tolist())
    assert advantages[1, 1:].tolist() == pytest.approx(full[1].tolist())
    assert advantages[[0, 1, 2, 2], [2, 0, 0, 1]].tolist() == [0.0] * 4
    assert estimator(torch.tensor([[NAN, NAN], [1.0, NAN]])).tolist() == [[0.0, 0.0]] * 2


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_group_of_one_is_refused(estimator) -> None:
    with pytest.raises(UserError, match=r"--rollout\.group_size 1"):
        estimator(torch.tensor([[1.0], [0.0]]))


@given(
    batch=st.lists(st.lists(st.integers(-20, 20), min_size=3, max_size=3), min_size=1, max_size=5),
    shift=st.integers(-1000, 1000),
    seed=st.integers(0, 99),
)
def test_groups_sum_to_zero_and_ignore_offset_scale_and_order(batch: list[list[int]], shift: int, seed: int) -> None:
    rewards = torch.tensor(batch, dtype=torch.float64)
    order = torch.randperm(len(rewards), generator=torch.Generator().manual_seed(seed))
    for estimator in ESTIMATORS:
        advantages = estimator(rewards)
        torch.testing.assert_close(advantages.sum(dim=1), torch.zeros(len(rewards)).double(), rtol=0, atol=1e-9)
        torch.testing.assert_close(estimator(rewards[order]), advantages[order], rtol=0, atol=1e-12)
        torch.testing.assert_close(estimator(rewards + shift), advantages, rtol=0, atol=1e-9)
        torch.testing.assert_close(estimator(rewards * 4, eps=0.0), estimator(rewards, eps=0.0), equal_nan=True)
    # A group's offset moves the spread of all rewards, but not the spread about the groups' means.
    offset = torch.arange(len(rewards)).unsqueeze(1) * 50
    torch.testing.assert_close(reinforce_pp_baseline(rewards + offset), reinforce_pp_baseline(rewards))
    assert torch.equal(batch_normalized(rewards) == 0, group_centered(rewards) == 0)


def test_keeps_the_dtype_of_the_rewards() -> None:
    for dtype in (torch.float32, torch.float64):
        assert {estimator(torch.tensor([[1.0, 0.0]], dtype=dtype)).dtype for estimator in ESTIMATORS} == {dtype}
