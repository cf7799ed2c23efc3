"""The event loop that outlives a rollout, and threads that do not outlive the program."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
import torch

from grpo_lightning.rewards.scoring import waiting
from grpo_lightning.rewards.scoring.waiting import MOST_THREADS, Raised, await_together

GATE = asyncio.Semaphore(1)
"""Bound to the first event loop in which something waits for it."""


async def through_the_gate(number: int) -> int:
    async with GATE:
        await asyncio.sleep(0.01)
    return number


async def both() -> list[int]:
    return list(await asyncio.gather(through_the_gate(1), through_the_gate(2)))


async def never() -> None:
    await asyncio.sleep(60)


async def fails() -> None:
    raise ValueError("no")


def test_what_belongs_to_an_event_loop_works_in_every_rollout() -> None:
    loops = []
    for _ in range(3):
        assert await_together({0: both(), 5: through_the_gate(3)}, 5.0) == {0: [1, 2], 5: 3}
        loops.append({thread for thread in threading.enumerate() if thread.name == "rewards' event loop"})
    assert loops[0]
    assert loops[0] == loops[1] == loops[2]


def test_a_call_in_a_thread_that_is_late_is_a_timeout() -> None:
    async def late() -> None:
        await asyncio.to_thread(time.sleep, 3.0)

    start = time.monotonic()
    assert await_together({0: late(), 1: asyncio.sleep(0, "well")}, 0.2) == {1: "well"}
    assert time.monotonic() - start < 2.0


def test_those_beside_one_that_raises_are_cancelled() -> None:
    ended = threading.Event()

    async def slow() -> None:
        try:
            await never()
        finally:
            ended.set()

    with pytest.raises(Raised) as caught:
        await_together({0: slow(), 7: fails()}, 30.0)
    assert (caught.value.index, str(caught.value.error)) == (7, "no")
    assert ended.wait(5.0)


def test_the_loop_survives_an_exit_and_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "GRACE_SECONDS", 0.1)

    async def leaves() -> None:
        sys.exit(3)

    async def leaves_in_a_task() -> None:
        await asyncio.ensure_future(leaves())

    async def blocks() -> None:
        time.sleep(1.0)

    for awaitable in (leaves(), leaves_in_a_task()):
        with pytest.raises(Raised) as caught:
            await_together({0: awaitable}, 5.0)
        assert isinstance(caught.value.error, SystemExit)
    with pytest.raises(TimeoutError):
        await_together({0: blocks()}, 0.1)
    assert await_together({0: asyncio.sleep(0, "well")}, 5.0) == {0: "well"}


def test_threads_run_side_by_side_up_to_a_bound() -> None:
    running, most = 0, 0
    lock, full = threading.Lock(), threading.Event()

    def work(number: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            if running >= MOST_THREADS or number < 0:
                full.set()
        full.wait(10)
        time.sleep(0.05)  # one thread too many would start now
        with lock:
            running -= 1
        if number < 0:
            raise KeyError(number)
        return number

    async def many() -> list[Any]:
        return await asyncio.gather(*(asyncio.to_thread(work, number) for number in range(MOST_THREADS + 8)))

    async def one_fails() -> None:
        await asyncio.to_thread(work, -1)

    assert await_together({0: many()}, 10.0)[0] == list(range(MOST_THREADS + 8))
    assert most == MOST_THREADS
    with pytest.raises(Raised) as caught:
        await_together({0: one_fails()}, 10.0)
    assert isinstance(caught.value.error, KeyError)


def test_no_graph_is_kept() -> None:
    async def enabled() -> bool:
        return torch.is_grad_enabled()

    assert await_together({0: enabled()}, 5.0) == {0: False}
    assert torch.is_grad_enabled()


def test_a_fork_has_a_loop_of_its_own() -> None:
    assert await_together({0: asyncio.sleep(0, "well")}, 5.0) == {0: "well"}
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if await_together({0: asyncio.sleep(0, "well")}, 5.0) == {0: "well"} else 1
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0


def test_an_exit_waits_for_no_thread() -> None:
    program = (
        "import asyncio, time\n"
        "from grpo_lightning.rewards.scoring.waiting import await_together\n"
        "async def late(): await asyncio.to_thread(time.sleep, 60)\n"
        "print(await_together({0: late(), 1: asyncio.sleep(0, 'well')}, 0.2))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.stderr, done.returncode) == ("{1: 'well'}\n", "", 0)
