"""Calls in threads of their own, and coroutines that are awaited together."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable
from typing import Any

GRACE_SECONDS = 5.0
"""For coroutines to end once they are cancelled."""


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
    """Await all in a thread of their own: the caller's thread may already run an event loop (notebooks do).

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
        await asyncio.gather(*(one(index, awaitable) for index, awaitable in waiting.items()))

    done: queue.Queue[tuple[int, Any]] = queue.Queue()
    in_thread(lambda: asyncio.run(all_of_them()), 0, done)
    try:
        error = done.get(timeout=limit + GRACE_SECONDS)[1]
    except queue.Empty:
        raise TimeoutError from None
    if error is not None:
        raise error
    return results
