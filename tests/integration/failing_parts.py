"""Rewards, samplers, data and callbacks that fail on one of several ranks; tests name them by dotted path.

The environment says who fails and when: ``FAILS_ON`` (rank), ``FAILS_AT`` (call, from 1) and ``FAILS_AS`` (how).
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
from grpo_lightning.types import Completion
from tests.integration.reward_functions import share_of_digits


def _fail(where: str) -> None:
    on, how = os.environ["FAILS_ON"], os.environ.get("FAILS_AS", "error")
    if on not in ("all", os.environ.get("LOCAL_RANK", "0")):
        return
    if how == "user":
        raise UserError(f"x in the {where}")
    if how == "stopped":
        raise RunStopped(f"x in the {where}")
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit":
        os._exit(7)
    if how == "sleep":
        time.sleep(600)
    raise ValueError(f"x in the {where}")


_calls = {"reward": 0, "engine": 0}


def _count(where: str) -> None:
    _calls[where] += 1
    if _calls[where] == int(os.environ.get("FAILS_AT", "2")):
        _fail(where)


def reward(completions: list[Any], **kwargs: Any) -> list[float]:
    _count("reward")
    return share_of_digits(completions)


class Engine(TransformersEngine):
    def generate(
        self, prompts: list[list[int]], sampling: Sampling, *, group_size: int, seeds: list[int]
    ) -> list[list[Completion]]:
        _count("engine")
        return super().generate(prompts, sampling, group_size=group_size, seeds=seeds)


class Data(RunningTotals):
    def rows(self) -> list[dict[str, Any]]:
        _fail("data")
        return super().rows()
