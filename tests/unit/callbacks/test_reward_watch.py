"""Rollouts without a signal are counted in a row, told of once, and counted on after a resume."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from grpo_lightning import ranks
from grpo_lightning.callbacks.reward_watch import RewardWatch
from grpo_lightning.errors import UserError

TRAINER = SimpleNamespace(default_root_dir="runs/some")


def see(
    watch: RewardWatch, *shares: float, right: float = 0.0, zero_std: float | None = None, tokens: float = 9.0
) -> None:
    """Rollouts with these shares of flat groups among 100; of totals, ``zero_std`` if they differ."""
    for share in shares:
        advantages = torch.tensor([[0.0, 0.0] if group < 100 * share else [-1.0, 1.0] for group in range(100)])
        metrics = {
            "frac_reward_zero_std": share if zero_std is None else zero_std,
            "completions/clipped_ratio": 0.25,
            "rewards/right/mean": right,
            "rewards/form/mean": 0.5,
        }
        rollout = SimpleNamespace(
            metrics=metrics,
            reward_terms={"right": None, "form": None},
            advantages=advantages.flip(0),
            windows=[SimpleNamespace(tokens=0.0), SimpleNamespace(tokens=tokens)],
        )
        watch.on_train_batch_end(
            cast(Any, TRAINER), cast(Any, None), None, cast(Any, SimpleNamespace(rollout=rollout)), 0
        )


def test_it_warns_once_after_so_many_in_a_row(caplog: pytest.LogCaptureFixture) -> None:
    watch = RewardWatch(rollouts=3)
    see(watch, 1.0, 1.0, 0.99, 1.0)
    see(watch, 1.0, right=1.0)
    assert caplog.messages == []
    see(watch, 1.0)
    (message,) = caplog.messages
    assert message.startswith("WARNING: nothing to learn for 3 rollouts in a row")
    assert "Mean of each reward: right 0.3333, form 0.5; share of completions cut at the length limit: 25%" in message
    assert "runs/some/samples" in message
    see(watch, *[1.0] * 10, 0.0, *[1.0] * 10)
    assert len(caplog.messages) == 1


def test_fifty_are_a_long_time(caplog: pytest.LogCaptureFixture) -> None:
    watch = RewardWatch()
    see(watch, *[1.0] * 49)
    assert caplog.messages == []
    see(watch, 1.0)
    assert "for 50 rollouts" in caplog.text


def test_equal_totals_teach_where_advantages_differ(caplog: pytest.LogCaptureFixture) -> None:
    see(RewardWatch(rollouts=3), *[0.99] * 5, zero_std=1.0)  # normalized one by one, or only the total is clipped
    assert caplog.messages == []


def test_what_another_rank_learns_counts(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "all_max", lambda values: values.clamp(min=0.5))
    see(RewardWatch(rollouts=3), *[1.0] * 5)
    assert caplog.messages == []


def test_a_resumed_run_counts_on(caplog: pytest.LogCaptureFixture) -> None:
    watch, resumed = RewardWatch(rollouts=3), RewardWatch(rollouts=3)
    see(watch, 1.0, 1.0, right=1.0)
    resumed.load_state_dict(json.loads(json.dumps(watch.state_dict())))
    see(resumed, 1.0)
    assert "right 0.6667" in caplog.text
    again = RewardWatch(rollouts=3)
    again.load_state_dict(resumed.state_dict())
    see(again, *[1.0] * 5)
    assert len(caplog.messages) == 1


def test_supervised_batches_have_no_rollout() -> None:
    RewardWatch(rollouts=1).on_train_batch_end(
        cast(Any, TRAINER), cast(Any, None), None, cast(Any, SimpleNamespace(rollout=None)), 0
    )


def test_no_rollouts_at_all_are_refused() -> None:
    with pytest.raises(UserError, match="at least 1"):
        RewardWatch(rollouts=0)


def test_rollouts_of_which_everything_is_masked_teach_nothing(caplog: pytest.LogCaptureFixture) -> None:
    see(RewardWatch(rollouts=3), 0.0, 0.0, 0.0, tokens=0.0)
    assert "or --rollout.mask_truncated left all of them out" in caplog.text
