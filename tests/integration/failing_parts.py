"""Rewards, a sampler and sources that fail; tests name them by dotted path.

The environment says on which ranks and how: ``FAILS=1:error`` or ``FAILS=0:sleep,1:user``. ``reward`` and the
sampler fail at their second call.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from grpo_lightning.data import RunningTotals
from grpo_lightning.engines import TransformersEngine
from grpo_lightning.engines.base import Sampling
from grpo_lightning.errors import RunStopped, UserError
from grpo_lightning.rewards import inline
from grpo_lightning.types import Completion
from tests.integration.reward_functions import share_of_digits

_calls = {"reward": 0, "engine": 0}


def _fail(where: str) -> None:
    how = dict(entry.split(":") for entry in os.environ["FAILS"].split(",")).get(os.environ.get("LOCAL_RANK", "0"))
    if how == "error":
        raise ValueError(f"x in the {where}")
    if how == "user":
        raise UserError(f"x in the {where}")
    if how == "stopped":
        raise RunStopped(f"x in the {where}")
    if how == "killed":  # as by the kernel, where memory is short
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "sleep":  # so that it does not notice what the others do
        time.sleep(600)


def _fail_at_second_call(where: str) -> None:
    _calls[where] += 1
    if _calls[where] == 2:
        _fail(where)


@inline  # what it does, it does to the rank
def reward(completions: list[Any], **kwargs: Any) -> list[float]:
    _fail_at_second_call("reward")
    return share_of_digits(completions)


def reward_apart(completions: list[Any], **kwargs: Any) -> list[float]:
    """Fails in the process that reward functions have for themselves."""
    _fail("reward apart")
    return share_of_digits(completions)


@inline
def rule(completions: list[Any], **kwargs: Any) -> list[float]:
    _fail("rule")
    return share_of_digits(completions)


class Engine(TransformersEngine):
    def generate(
        self, prompts: list[list[int]], sampling: Sampling, *, group_size: int, seeds: list[int]
    ) -> list[list[Completion]]:
        _fail_at_second_call("engine")
        return super().generate(prompts, sampling, group_size=group_size, seeds=seeds)


class Data(RunningTotals):
    def rows(self) -> list[dict[str, Any]]:
        _fail("data")
        return super().rows()


class Judged(RunningTotals):
    """By a rule that fails."""

    @property
    def correctness(self) -> Any:
        return rule
