"""Reward functions as TRL's documentation writes them: they must run here unchanged.

TRL calls ``f(prompts=, completions=, completion_ids=, <columns>=, trainer_state=, log_extra=, log_metric=)`` and takes
one number or None for each completion; for chat prompts, prompts and completions are lists of messages.
"""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import torch

SEEN: list[dict[str, Any]] = []
"""Keywords of every call, for the tests to look at."""


def reward_len(completions, **kwargs):
    """The reward of TRL's quick start."""
    return [-abs(4 - len(completion)) / 4 for completion in completions]


def reward_digits(
    prompts, completions, completion_ids, answer, trainer_state, log_extra=None, log_metric=None, **kwargs
):
    """Everything that a reward may be given, and the two loggers."""
    SEEN.append(
        {
            "prompts": prompts,
            "completions": completions,
            "completion_ids": completion_ids,
            "answer": answer,
            "step": trainer_state.global_step,
            "others": sorted(kwargs),
        }
    )
    contents = [c if isinstance(c, str) else c[0]["content"] for c in completions]
    digits = [sum(c.isdigit() for c in content) for content in contents]
    if log_extra:
        log_extra("golden_answer", list(answer))
        log_extra("digits", digits)
    if log_metric:
        log_metric("digits/most", max(digits))
    return [float(count) for count in digits]


def reward_some(prompts, completions, **kwargs):
    """A reward that applies to some rows only."""
    return [None if i % 2 else 1.0 for i in range(len(completions))]


async def reward_async(prompts, completions, **kwargs):
    await asyncio.sleep(0)
    return [0.5] * len(completions)


def reward_arrays(completions, trainer_state, log_extra=None, log_metric=None, **kwargs):
    """A reward that works with arrays and tensors throughout."""
    lengths = np.array([len(completion) for completion in completions], dtype=np.float32)
    share = torch.tensor(lengths) / max(float(lengths.max()), 1.0)
    log_extra("share", share)
    log_extra("length", lengths)
    log_extra("places", [np.arange(2)] * len(lengths))
    log_metric("length/most", lengths.max())
    return share * (1 + trainer_state.global_step)


class WeightedLength:
    """A callable object, configured in YAML."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale
        self.__name__ = "weighted_length"

    def __call__(self, completions, **kwargs):
        return [self.scale * len(str(completion)) for completion in completions]
