"""How the reward functions are called, and what becomes of one that fails."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from grpo_lightning.errors import UserError

TRAINER_KEYWORDS = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
"""Keywords that rewards get besides the data's columns, which therefore may not have these names."""


class CallLog:
    """Receives ``log_metric`` and ``log_extra`` of all functions; they may be called from any thread."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._lock = threading.Lock()
        self.metrics: dict[str, list[float]] = {}
        self.columns: dict[str, list[Any]] = {}

    def metric(self, name: str, value: float) -> None:
        with self._lock:
            self.metrics.setdefault(name, []).append(float(value))

    def extra(self, name: str, values: Sequence[Any]) -> None:
        values = list(values)
        if len(values) != self._rows:
            raise UserError(
                f"log_extra({name!r}, ...) got {len(values)} values for {self._rows} completions: give one for each"
            )
        with self._lock:
            self.columns[name] = values


class RewardCaller:
    """Calls reward functions.

    Args:
        rewards: functions in TRL's form; plain, ``async`` or objects with ``__call__``.
        names: what they are called in messages and metrics.
    """

    def __init__(self, rewards: Sequence[Callable[..., Any]], names: Sequence[str]) -> None:
        self.rewards = list(rewards)
        self.names = list(names)

    def call(self, keywords: dict[str, Any], log: CallLog) -> list[Any]:
        """What each function returns; the async ones run at the same time."""
        keywords = keywords | {"log_extra": log.extra, "log_metric": log.metric}
        results: list[Any] = [
            _guarded(name, _call, name, reward, keywords) for name, reward in zip(self.names, self.rewards, strict=True)
        ]
        waiting = [index for index, result in enumerate(results) if inspect.isawaitable(result)]
        if waiting:
            awaited = _run_together([_awaited(self.names[index], results[index]) for index in waiting])
            for index, result in zip(waiting, awaited, strict=True):
                results[index] = result
        return results


def _call(name: str, reward: Callable[..., Any], keywords: dict[str, Any]) -> Any:
    """Call with the keywords that the function takes: all of them if it has ``**kwargs``."""
    require(name, reward, keywords)
    parameters = inspect.signature(reward).parameters.values()
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        wanted = {parameter.name for parameter in parameters}
        keywords = {key: value for key, value in keywords.items() if key in wanted}
    return reward(**keywords)


def require(name: str, reward: Callable[..., Any], known: Iterable[str]) -> None:
    """Refuse a function that must be given something else than the ``known`` keywords."""
    known = set(known)
    for parameter in inspect.signature(reward).parameters.values():
        named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if named and parameter.default is parameter.empty and parameter.name not in known:
            columns = ", ".join(sorted(known.difference(TRAINER_KEYWORDS))) or "none"
            raise UserError(
                f"reward {name} needs a column {parameter.name!r} that the data does not have (its columns: {columns})"
            )


def _guarded(name: str, call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except UserError:
        raise
    except Exception as error:
        raise _failure(name, error) from error


async def _awaited(name: str, result: Any) -> Any:
    try:
        return await result
    except UserError:
        raise
    except Exception as error:
        raise _failure(name, error) from error


def _failure(name: str, error: Exception) -> RuntimeError:
    row = getattr(error, "row", None)
    where = "" if row is None else f" at row {row}"
    return RuntimeError(f"reward {name} failed{where}: {type(error).__name__}: {error}")


def _run_together(tasks: list[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Await all in a thread of their own: the caller's thread may already run an event loop (notebooks do)."""
    outcome: list[Any] = []

    async def gather() -> list[Any]:
        return await asyncio.gather(*tasks)

    def run() -> None:
        try:
            outcome.append(asyncio.run(gather()))
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, name="async-rewards", daemon=True)
    thread.start()
    thread.join()
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]
