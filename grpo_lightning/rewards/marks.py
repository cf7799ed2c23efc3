"""Marks on reward functions, which the scorer, the start-up check and the table of samples read.

A mark is an attribute, so that an object with ``__call__`` can have it as well: ``inline = True``, ``best = 2.0``,
``gold_reader = staticmethod(gold_text)``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

RewardT = TypeVar("RewardT", bound=Callable[..., Any])


def innermost(reward: Any) -> Any:
    """The function or object itself, where arguments are bound to it by ``functools.partial``."""
    while isinstance(reward, functools.partial):
        reward = reward.func
    return reward


def marked(reward: Any, mark: str, otherwise: Any = None) -> Any:
    """A mark of the reward, also where arguments are bound to it by ``functools.partial``.

    Args:
        reward: any.
        mark: ``"inline"`` or ``"best"``.
        otherwise: for one without this mark.
    """
    return getattr(reward, mark, getattr(innermost(reward), mark, otherwise))


def inline(reward: RewardT) -> RewardT:
    """For a reward that surely returns, and soon: it is called in the trainer's own process.

    Every other function runs in a worker process with a time and a memory limit.
    """
    reward.inline = True  # type: ignore[attr-defined]
    return reward


def best(score: float) -> Callable[[RewardT], RewardT]:
    """For a reward of right answers: what a right one earns. A run starts only if the data's gold answers earn it.

    Args:
        score: the largest value that the function returns.
    """

    def mark(reward: RewardT) -> RewardT:
        reward.best = score  # type: ignore[attr-defined]
        return reward

    return mark


def gold_reader(read: Callable[[Any], str | None]) -> Callable[[RewardT], RewardT]:
    """For a reward whose golds are longer than its answers: GSM8K's are worked solutions that end in ``#### 72``.

    The start-up check writes what ``read`` finds into the layout that the prompt asks for; without this mark, the gold
    as it stands.

    Args:
        read: from a row's ``answer`` to what a right reply gives as its answer; None or empty if it holds none.
    """

    def mark(reward: RewardT) -> RewardT:
        reward.gold_reader = read  # type: ignore[attr-defined]
        return reward

    return mark


def answer_reader(read: Callable[[str], str | None]) -> Callable[[RewardT], RewardT]:
    """For a reward that looks for the final answer in a completion: the table of samples shows what it found.

    Args:
        read: from a completion's text to the answer in it; None if it has none.
    """

    def mark(reward: RewardT) -> RewardT:
        reward.answer_reader = read  # type: ignore[attr-defined]
        return reward

    return mark
