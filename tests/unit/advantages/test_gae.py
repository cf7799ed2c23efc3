"""Generalized advantage estimation against numbers worked out by hand, and the two ends of λ."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from grpo_lightning.advantages import GAE, TokenCredit
from grpo_lightning.errors import UserError

NAN = math.nan


def tokens(*rows: list[float]) -> Tensor:
    """One completion a row, each a group of its own, ``[P, 1, T]``."""
    return torch.tensor(rows, dtype=torch.float64)[:, None]


def estimate(rewards: Tensor, values: Tensor, mask: Tensor, **options: float | bool) -> TokenCredit:
    return GAE(**{"whiten": False} | options)(rewards, mask=mask, values=values)  # type: ignore[arg-type]


REWARDS = tokens([0.0, 0.0, 1.0], [-1.0, 2.0, 7.0])
VALUES = tokens([0.5, 0.25, 0.75], [1.0, -0.5, 9.0])
MASK = tokens([1, 1, 1], [1, 1, 0])


def test_advantages_and_returns_by_hand() -> None:
    """gamma 0.9 and lambda 0.5, so that 0.45 of the next advantage counts.

    First row: deltas 0.9·0.25 - 0.5 = -0.275, 0.9·0.75 - 0.25 = 0.425, 1 - 0.75 = 0.25.
    Second row: deltas -1 - 0.9·0.5 - 1 = -2.45, 2 + 0.5 = 2.5; nothing follows its second token.
    """
    credit = estimate(REWARDS, VALUES, MASK, gamma=0.9, lam=0.5)
    expected = tokens([-0.275 + 0.45 * 0.5375, 0.425 + 0.45 * 0.25, 0.25], [-2.45 + 0.45 * 2.5, 2.5, 0.0])
    torch.testing.assert_close(credit.advantages, expected, rtol=0, atol=1e-12)
    returns = tokens([0.466875, 0.7875, 1.0], [-0.325, 2.0, NAN])
    torch.testing.assert_close(credit.returns, returns, rtol=0, atol=1e-12, equal_nan=True)


def test_lambda_one_is_the_reward_to_come_less_the_value() -> None:
    credit = estimate(REWARDS, VALUES, MASK, lam=1.0)
    torch.testing.assert_close(credit.advantages, tokens([0.5, 0.75, 0.25], [0.0, 2.5, 0.0]))
    torch.testing.assert_close(credit.returns, tokens([1.0, 1.0, 1.0], [1.0, 2.0, NAN]), equal_nan=True)


def test_lambda_zero_is_one_step() -> None:
    credit = estimate(REWARDS, VALUES, MASK, lam=0.0)
    torch.testing.assert_close(credit.advantages, tokens([-0.25, 0.5, 0.25], [-2.5, 2.5, 0.0]))


def test_without_a_critic_to_speak_of_lambda_fades_with_distance() -> None:
    credit = estimate(tokens([0.0, 0.0, 2.0]), tokens([0.0, 0.0, 0.0]), tokens([1, 1, 1]), lam=0.5)
    torch.testing.assert_close(credit.advantages, tokens([0.5, 1.0, 2.0]))


def test_whitened_over_all_tokens_of_all_completions() -> None:
    """0.5, 0.75, 0.25, 0 and 2.5 have mean 0.8 and, divided by 4, the variance 3.925 / 4."""
    credit = estimate(REWARDS, VALUES, MASK, lam=1.0, whiten=True)
    plain = torch.tensor([0.5, 0.75, 0.25, 0.0, 2.5], dtype=torch.float64)
    expected = (plain - 0.8) / math.sqrt(3.925 / 4)
    torch.testing.assert_close(credit.advantages[MASK.bool()], expected, rtol=0, atol=1e-7)
    assert credit.advantages[1, 0, 2] == 0
    assert credit.returns is not None
    assert credit.returns[1, 0, 1] == 2.0


def test_a_completion_without_a_known_reward_says_nothing() -> None:
    unknown = tokens([NAN, NAN, NAN])
    credit = GAE(lam=1.0)(
        torch.cat([REWARDS, unknown]), mask=torch.cat([MASK, tokens([0, 0, 0])]), values=torch.cat([VALUES, unknown])
    )
    alone = GAE(lam=1.0)(REWARDS, mask=MASK, values=VALUES)
    assert torch.equal(credit.advantages[:2], alone.advantages)
    assert torch.equal(credit.advantages[2], torch.zeros(1, 3, dtype=torch.float64))
    assert credit.returns is not None
    assert credit.returns[2].isnan().all()


def test_a_critic_that_is_always_right_leaves_nothing_to_learn() -> None:
    ones = tokens([1, 1, 1], [1, 1, 1])
    credit = GAE(lam=0.95)(tokens([0, 0, 1], [0, 0, 3]), mask=ones, values=tokens([1, 1, 1], [3, 3, 3]))
    assert torch.equal(credit.advantages, torch.zeros_like(ones))


def test_float32_in_float32_out() -> None:
    credit = GAE()(REWARDS.float(), mask=MASK.float(), values=VALUES.float())
    assert credit.advantages.dtype == torch.float32
    assert credit.returns is not None
    assert credit.returns.dtype == torch.float32


def test_it_asks_for_values() -> None:
    assert GAE.needs_values


@pytest.mark.parametrize(
    ("options", "fault"), [({"gamma": 0.0}, "gamma 0"), ({"gamma": 1.1}, "gamma 1.1"), ({"lam": -0.1}, "lam -0.1")]
)
def test_figures_out_of_range(options: dict[str, float], fault: str) -> None:
    with pytest.raises(UserError, match=fault):
        GAE(**options)  # type: ignore[arg-type]
