"""Calls in threads of their own, and coroutines that are awaited together, all on one event loop.

The loop lives as long as the process: what a module makes once and an event loop owns from its first use on (a
semaphore, an HTTP client's connections) works in every rollout. Nothing here holds up an exit.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

GRACE_SECONDS = 5.0
"""For coroutines to end once they are cancelled."""
MOST_THREADS = 32
"""That run what coroutines hand to threads (``asyncio.to_thread``) at the same time; asyncio's own bound."""

_loops: dict[int, asyncio.AbstractEventLoop] = {}
"""By process: a fork has no thread that would run its parent's."""


def in_thread(call: Callable[[], Any], index: int, done: queue.Queue[tuple[int, Any]]) -> None:
    """Put what a call returns or raises into a queue; the thread does not hold up an exit."""

    def run() -> None:
        try:
            done.put((index, call()))
        except BaseException as error:
            done.put((index, error))

    threading.Thread(target=run, name="reward", daemon=True).start()


class Raised(Exception):
    """What one of several awaitables raised."""

    def __init__(self, index: int, error: BaseException) -> None:
        self.index, self.error = index, error


def await_together(waiting: dict[int, Awaitable[Any]], limit: float) -> dict[int, Any]:
    """Await all in the loop's thread: the caller's may already run an event loop (notebooks do).

    torch keeps no graph of what they compute.

    Returns:
        What those return that are done within ``limit`` seconds; the others are cancelled.

    Raises:
        Raised: for the first one that raises.
        TimeoutError: if one cannot be cancelled.
    """
    results: dict[int, Any] = {}

    async def one(index: int, awaitable: Awaitable[Any]) -> None:
        clock = asyncio.timeout(limit)
        try:
            async with clock:
                results[index] = await awaitable
        except (Exception, SystemExit) as error:
            if not clock.expired():
                raise Raised(index, error) from error

    async def all_of_them() -> None:
        if torch := sys.modules.get("torch"):
            torch.set_grad_enabled(False)  # of this thread
        tasks = [asyncio.ensure_future(one(index, awaitable)) for index, awaitable in waiting.items()]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:  # those beside one that raised
                task.cancel()

    loop = _loop()
    done = asyncio.run_coroutine_threadsafe(all_of_them(), loop)
    try:
        done.result(limit + GRACE_SECONDS)
    except TimeoutError:  # no function's own, which would be a Raised: the loop may be blocked
        _loops.pop(os.getpid(), None)
        raise
    finally:
        done.cancel()
    return results


class _Threads(ThreadPoolExecutor):
    """Runs each call in a thread that an exit does not wait for, unlike the threads of its base class."""

    def __init__(self) -> None:
        super().__init__(1)
        self._free = threading.Semaphore(MOST_THREADS)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def run() -> None:
            with self._free:
                if future.set_running_or_notify_cancel():
                    try:
                        future.set_result(fn(*args, **kwargs))
                    except BaseException as error:
                        future.set_exception(error)

        threading.Thread(target=run, name="reward", daemon=True).start()
        return future


def _loop() -> asyncio.AbstractEventLoop:
    """This process's event loop."""
    if os.getpid() not in _loops:
        new = asyncio.new_event_loop()
        if _loops.setdefault(os.getpid(), new) is not new:  # another thread was faster
            new.close()
        else:
            new.set_default_executor(_Threads())
            threading.Thread(target=_run, args=(new,), name="rewards' event loop", daemon=True).start()
    return _loops[os.getpid()]


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    while True:
        try:
            loop.run_forever()
        except BaseException:  # SystemExit of a task ends a loop, besides being the task's result
            continue
