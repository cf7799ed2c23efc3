"""Rewards that no trainer should be exposed to; tests name them by dotted path.

Where one misbehaves on some completions only, it is on those that hold an ``x``. ``BAD_REWARDS_PIDS`` names a file to
which they write the ids of processes that they start.
"""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from grpo_lightning.rewards import completion_text

PIDS = "BAD_REWARDS_PIDS"
_calls = 0


def _is_bad(completion: Any) -> bool:
    return "x" in completion_text(completion)


def _any_bad(completions: list[Any]) -> bool:
    return any(_is_bad(completion) for completion in completions)


def _lengths(completions: list[Any]) -> list[float]:
    return [float(len(completion_text(completion))) for completion in completions]


def _note(pid: int) -> None:
    with open(os.environ[PIDS], "a") as file:
        file.write(f"{pid}\n")


def takes_half_a_gib(completions: list[Any], **_: Any) -> list[float]:
    return [len(bytearray(1 << 29)) / (1 << 30) for _ in completions]


def raises(completions: list[Any], **_: Any) -> list[float]:
    if _any_bad(completions):
        raise ValueError("cannot read\nthis")
    return _lengths(completions)


def takes_texts_only(completions: list[Any]) -> list[float]:
    return raises(completions)


def raises_together(completions: list[Any], **_: Any) -> list[float]:
    if len(completions) > 1:
        raise KeyError("group")
    return [0.0]


def leaves(completions: list[Any], **_: Any) -> list[float]:
    sys.exit("enough")


def sleeps(completions: list[Any], **_: Any) -> list[float]:
    time.sleep(1000)
    return _lengths(completions)


def sleeps_on_x(completions: list[Any], log_extra: Any, log_metric: Any, **_: Any) -> list[float]:
    if _any_bad(completions):
        subprocess.run(["sleep", "1000"], check=True)
    log_extra("length", _lengths(completions))
    log_metric("longest", max(_lengths(completions)))
    return _lengths(completions)


def eats_memory_on_x(completions: list[Any], **_: Any) -> list[float]:
    eaten = []
    while _any_bad(completions):
        eaten.append(b"x" * (1 << 26))
    return _lengths(completions)


def exits_on_x(completions: list[Any], **_: Any) -> list[float]:
    if _any_bad(completions):
        os._exit(0)
    return _lengths(completions)


def exits(completions: list[Any], **_: Any) -> list[float]:
    os._exit(0)


def breaks_on_x(completions: list[Any], **_: Any) -> list[float]:
    if _any_bad(completions):
        ctypes.string_at(0)
    return _lengths(completions)


def forks(completions: list[Any], **_: Any) -> list[float]:
    """Comes back twice, with other scores in the child."""
    return [-1.0] * len(completions) if os.fork() == 0 else _lengths(completions)


def leaves_children(completions: list[Any], **_: Any) -> list[float]:
    """One in a session of its own, one whose parent is gone, and one that holds what its parent held."""
    _note(subprocess.Popen(["sleep", "1000"], start_new_session=True).pid)
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            _note(os.getpid())
            time.sleep(1000)
        os._exit(0)
    if os.fork() == 0:
        _note(os.getpid())
        time.sleep(1000)
    while Path(os.environ[PIDS]).read_text().count("\n") < 3:
        time.sleep(0.01)
    if _any_bad(completions):
        os._exit(1)
    return _lengths(completions)


def prints(completions: list[Any], **_: Any) -> list[float]:
    print("the first line")
    for _number in range(100):
        os.write(1, b"y" * (1 << 20))
        os.write(2, b"z" * (1 << 20))
    return _lengths(completions)


class Evil:
    def __reduce__(self) -> Any:
        return os._exit, (7,)

    def __repr__(self) -> str:
        while True:
            pass

    __str__ = __eq__ = __hash__ = __repr__  # type: ignore[assignment]


GARBAGE = {
    "number": 1.0,
    "none": None,
    "short": [0.0],
    "nan": [float("nan")] * 4,
    "text": ["a"] * 4,
    "object": [Evil()] * 4,
    "alone": Evil(),
    "generator": (0.0 for _ in range(4)),
    "lambdas": [lambda: 1.0] * 4,
    "huge": [10**400] * 4,
    "complex": [1j] * 4,
}


def garbage(completions: list[Any], kind: list[str], **_: Any) -> Any:
    return GARBAGE[kind[0]]


def counts_calls(completions: list[Any], log_count: Any, trainer_state: Any, **_: Any) -> list[float]:
    """Keeps what it knows from call to call, in a process that is not the trainer's."""
    global _calls
    _calls += 1
    log_count("calls")
    return [float(_calls), float(os.getpid()), float(trainer_state.global_step), 0.0]


async def waits_for_ever(completions: list[Any], **_: Any) -> list[float]:
    import asyncio

    await asyncio.sleep(1000)
    return []


async def blocks(completions: list[Any], **_: Any) -> list[float]:
    time.sleep(30)
    return []


async def raises_late(completions: list[Any], **_: Any) -> list[float]:
    if _any_bad(completions):
        raise ValueError("late")
    return _lengths(completions)


def draws(completions: list[Any], **_: Any) -> list[float]:
    return [random.random() for _ in completions]


def uses_torch(completions: list[Any], **_: Any) -> Any:
    """Not bad, only large."""
    import torch
    import transformers  # noqa: F401

    return torch.nn.functional.one_hot(torch.tensor(0), len(completions)).float()
