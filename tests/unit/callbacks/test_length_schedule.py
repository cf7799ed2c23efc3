"""The completion limit, step by step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from grpo_lightning.callbacks import CompletionLengthSchedule
from grpo_lightning.callbacks.rollout import RolloutCallback
from grpo_lightning.errors import UserError


class _Rollout(RolloutCallback):
    """Notes what the sampler is asked for."""

    def __init__(self) -> None:
        super().__init__(max_completion_length=64, temperature=0.7)
        self.allowed: list[int] = []
        self.sampler = SimpleNamespace(allow_length=self._allow)  # type: ignore[assignment]

    def _allow(self, trainer: Any, pl_module: Any, completion: int, *, flag: str) -> None:
        self.allowed.append(completion)


def started(schedule: CompletionLengthSchedule, step: int) -> _Rollout:
    rollout = _Rollout()
    trainer: Any = SimpleNamespace(callbacks=[schedule, rollout], global_step=step)
    schedule.setup(trainer, SimpleNamespace(learns_from_rollouts=True), "fit")
    schedule.on_train_start(trainer)
    return rollout


def test_it_grows_linearly_and_then_stays() -> None:
    schedule = CompletionLengthSchedule(start=10, end=50, steps=20)
    assert [schedule.limit(step) for step in (0, 1, 5, 10, 19, 20, 21, 1000)] == [10, 12, 20, 30, 48, 50, 50, 50]
    assert [CompletionLengthSchedule(start=5, end=2, steps=3).limit(step) for step in range(5)] == [5, 4, 3, 2, 2]


def test_rollouts_get_the_limit_of_their_first_step_and_the_sampler_the_longest_from_the_start() -> None:
    schedule = CompletionLengthSchedule(start=10, steps=20)
    rollout = started(schedule, 10)
    assert rollout.sampling.max_completion_length == 37  # half of the way to --rollout.max_completion_length 64
    assert rollout.sampling.temperature == 0.7
    assert rollout.allowed == [64]
    figures = {"loss": 1.0}
    trainer: Any = SimpleNamespace(global_step=12)
    schedule.on_step_figures(trainer, None, figures)
    assert figures == {"loss": 1.0, "completions/limit": 37.0}
    schedule.on_train_batch_end(trainer)
    assert rollout.sampling.max_completion_length == 10 + round(54 * 0.6)
    assert started(CompletionLengthSchedule(start=100, end=20, steps=5), 0).allowed == [100]


def test_what_means_nothing_is_refused() -> None:
    for wrong in ({"start": 0, "steps": 5}, {"start": 5, "steps": 0}, {"start": 5, "steps": 5, "end": 0}):
        with pytest.raises(
            UserError, match=rf"CompletionLengthSchedule\.{next(n for n, v in wrong.items() if not v)} 0"
        ):
            CompletionLengthSchedule(**wrong)
    with pytest.raises(UserError, match="SimpleNamespace samples no completions"):
        CompletionLengthSchedule(start=1, steps=1).setup(
            SimpleNamespace(), SimpleNamespace(learns_from_rollouts=False), "fit"
        )
