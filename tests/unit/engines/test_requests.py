from __future__ import annotations

import pytest

from grpo_lightning.engines.base import Sampling
from grpo_lightning.engines.requests import completion_limits, progress_bar
from grpo_lightning.errors import UserError

SAMPLING = Sampling(max_completion_length=8)


def limits(prompts: list[list[int]], max_length: int = 16) -> list[int]:
    return completion_limits(prompts, SAMPLING, group_size=2, seeds=[0] * len(prompts), max_length=max_length)


def test_limit_is_the_smaller_of_the_sampling_limit_and_the_room_left():
    assert limits([[5] * 3, [5] * 8, [5] * 9, [5] * 15]) == [8, 8, 7, 1]


@pytest.mark.parametrize(("length", "message"), [(0, "prompt 1 .* no tokens"), (16, "prompt 1 .* 16 tokens")])
def test_prompts_that_leave_nothing_to_do_are_refused(length, message):
    with pytest.raises(UserError, match=message):
        limits([[5], [5] * length])


def test_as_many_seeds_as_prompts():
    with pytest.raises(ValueError, match="2 prompts came with 1 seeds"):
        completion_limits([[5], [5]], SAMPLING, group_size=2, seeds=[0], max_length=16)


def test_no_progress_bar_off_a_terminal(monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: False, raising=False)
    assert progress_bar() is None
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert progress_bar() is not None
