"""Where the reward functions are called, how long they may take, and what becomes of a call that fails.

Functions run in worker processes, one for each that lives as long as its caller, so that none can freeze or kill the
trainer. Those marked ``inline``, modules and ``async`` functions run in the trainer's process, and so do those that
another process cannot import (a lambda, a function inside a function).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import logging
import math
import pickle
import queue
import random
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NoReturn

from grpo_lightning.errors import RunStopped, UserError
from grpo_lightning.rewards.isolation.pool import IsolatedPool, Outcome
from grpo_lightning.rewards.marks import innermost, marked
from grpo_lightning.rewards.scoring.failures import SEARCH_SECONDS, Failure, stop
from grpo_lightning.rewards.scoring.invocation import (
    TRAINER_KEYWORDS,
    CallLog,
    Reward,
    answer,
    invoke,
    load,
    only_row,
    require,
    taken,
)
from grpo_lightning.rewards.scoring.waiting import Raised, await_together, in_thread

__all__ = ["TRAINER_KEYWORDS", "CallLog", "RewardCaller", "require"]

MOST_FAILURES = 8
"""Completions one after the other that exceed a limit each by itself: then the function is broken, not they."""

_Ask = Callable[..., list[Outcome]]

_COUNTED = {"timeout": "timeouts", "memory": "out_of_memory", "crash": "crashes"}
_TOLD: set[str] = set()

_log = logging.getLogger(__name__)


class RewardCaller:
    """Calls reward functions.

    A call that takes longer than ``time_limit`` or more memory than ``memory_limit_gib``, or whose process ends, is
    killed with every process it has started. Its completions are then scored one at a time, each with the same limits,
    in some workers at once, so that those that cannot be scored are found: they get ``on_timeout`` and are counted as
    ``rewards/<name>/timeouts``, ``crashes`` or ``out_of_memory``. With ``h`` such completions and ``w`` workers (one
    per core, at most 4) a function takes at most ``time_limit * (1 + ceil(h / w))`` and the time of the others.

    Args:
        rewards: functions in TRL's form; plain, ``async`` or objects with ``__call__``.
        names: what they are called in messages and metrics.
        time_limit: wall-clock seconds for one call. An ``async`` function that exceeds it is cancelled, and all its
            completions get ``on_timeout``. Functions that run inline have no limit.
        on_timeout: score of a completion on which the function exceeded a limit.
        memory_limit_gib: memory that a worker may take on top of what importing the function took.
    """

    def __init__(
        self,
        rewards: Sequence[Reward],
        names: Sequence[str],
        *,
        time_limit: float = 60.0,
        on_timeout: float = 0.0,
        memory_limit_gib: float = 8.0,
    ) -> None:
        if not 0 < time_limit < math.inf:
            raise UserError(f"--rollout.reward_time_limit {time_limit:g} must be a positive number of seconds")
        if not 0 < memory_limit_gib < math.inf:
            raise UserError(f"--rollout.reward_memory_limit_gib {memory_limit_gib:g} must be a positive number")
        self.rewards, self.names = list(rewards), list(names)
        self.time_limit, self.on_timeout = time_limit, on_timeout
        self.memory_limit = int(memory_limit_gib * (1 << 30))
        self._pickled = [_for_workers(name, reward) for name, reward in zip(names, rewards, strict=True)]
        self._failed = [0] * len(self.rewards)
        self.pools = [IsolatedPool() for _ in self.rewards]
        """Where each function's workers are, once it is called; a caller of the same functions may share them."""

    def close(self) -> None:
        """End the workers; the next call starts new ones, which import the functions as they are by then."""
        for pool in self.pools:
            pool.close()

    def call(self, keywords: dict[str, Any], log: CallLog) -> list[Any]:
        """What each function returns for the same completions; workers and ``async`` functions run at the same time.

        Args:
            keywords: lists with one entry per completion, and ``trainer_state``.
            log: receives what the functions log.

        Raises:
            UserError: for a missing column, or for what a worker cannot be sent or cannot send back.
            RunStopped: if a function raises; the message names it and the completion. Or if it scores no completion
                within its limits.
        """
        for name, reward in zip(self.names, self.rewards, strict=True):
            require(name, reward, {*keywords, *TRAINER_KEYWORDS})
        results: list[Any] = [None] * len(self.rewards)
        done: queue.Queue[tuple[int, Any]] = queue.Queue()
        isolated = [index for index, pickled in enumerate(self._pickled) if pickled is not None]
        logs = {index: CallLog(log.rows) for index in isolated}
        for index in isolated:
            # Drawn from a stream that a checkpoint holds: a resumed run draws what this one would have drawn.
            ask = functools.partial(self._ask, index, random.getrandbits(31))
            in_thread(functools.partial(self._isolated, index, ask, keywords, logs[index]), index, done)
        waiting: dict[int, Awaitable[Any]] = {}
        for index in set(range(len(self.rewards))) - set(isolated):
            results[index] = self._inline(index, keywords, log)
            if inspect.isawaitable(results[index]):
                waiting[index] = results[index]
        for index, result in (self._awaited(waiting, keywords, log) if waiting else {}).items():
            results[index] = result
        for _ in isolated:
            index, result = done.get()
            if isinstance(result, BaseException):
                raise result
            results[index] = result
        for of_one in logs.values():  # in the functions' order, whichever was done first
            log.add(of_one.metrics, of_one.counts, of_one.columns)
        return results

    # --- in this process -----------------------------------------------------------------------------------------

    def _inline(self, index: int, keywords: dict[str, Any], log: CallLog) -> Any:
        torch = sys.modules.get("torch")
        try:
            with torch.no_grad() if torch else contextlib.nullcontext():
                return invoke(self.names[index], self.rewards[index], keywords, log)
        except (Exception, SystemExit) as error:
            self._stop(index, error, keywords, log.rows)

    def _awaited(self, waiting: dict[int, Awaitable[Any]], keywords: dict[str, Any], log: CallLog) -> dict[int, Any]:
        """What the functions return in the end; ``on_timeout`` from those that were cancelled."""
        try:
            results = await_together(waiting, self.time_limit)
        except Raised as raised:
            self._stop(raised.index, raised.error, keywords, log.rows)
        except TimeoutError:
            names = ", ".join(self.names[index] for index in waiting)
            raise RunStopped(
                f"reward {names}: not done within {self.time_limit:g} s and not to be cancelled; a function "
                "that blocks its event loop should not be async"
            ) from None
        for index in waiting:
            log.add(counts={f"rewards/{self.names[index]}/timeouts": 0.0})
            if index in results:
                self._failed[index] = 0
                continue
            results[index] = [self.on_timeout] * log.rows
            _log.warning(self._count(index, {"timeout": log.rows}, log.rows, log))
            self._failed[index] += 1
            if self._failed[index] >= MOST_FAILURES:
                calls = f"{MOST_FAILURES} calls in a row"
                raise RunStopped(f"reward {self.names[index]}: {calls} {self._reason('timeout')}")
        return results

    def _stop(self, index: int, error: BaseException, keywords: dict[str, Any], rows: int) -> NoReturn:
        name, reward = self.names[index], self.rewards[index]

        def again(row: int) -> str | None:
            try:
                result = invoke(name, reward, only_row(keywords, row), CallLog(1))
                if inspect.isawaitable(result):
                    await_together({0: result}, SEARCH_SECONDS)
            except Raised as raised:
                return type(raised.error).__name__
            except (Exception, SystemExit) as error:
                return type(error).__name__
            return None

        stop(name, Failure.of(error), keywords, rows, again=again, cause=error)

    # --- in workers ----------------------------------------------------------------------------------------------

    def _isolated(self, index: int, ask: _Ask, keywords: dict[str, Any], log: CallLog) -> Any:
        log.add(counts={f"rewards/{self.names[index]}/timeouts": 0.0})
        outcome = ask([(keywords, log.rows)], workers=1)[0]
        if outcome.failure in _COUNTED:
            return self._one_by_one(index, ask, keywords, log)
        found = self._found(index, ask, outcome, keywords, log.rows)
        self._failed[index] = 0
        log.add(found["metrics"], found["counts"], found["columns"])
        return found["result"]

    def _ask(self, index: int, seed: int, calls: list[tuple[dict[str, Any], int]], **options: Any) -> list[Outcome]:
        """Have workers call the function with keywords for so many completions."""
        name, reward, pickled = self.names[index], self.rewards[index], self._pickled[index]
        assert pickled is not None
        options = {"time_limit": self.time_limit, **options}
        rows = [
            (pickled, name, taken(reward, keywords), count, seed + number)
            for number, (keywords, count) in enumerate(calls)
        ]
        try:
            warm_up = functools.partial(load, pickled)
            return self.pools[index].run(answer, rows, warm_up=warm_up, memory_limit=self.memory_limit, **options)
        except UserError as error:
            raise UserError(f"reward {name}: {error}; {_REMEDY}") from None
        except RuntimeError as error:
            raise RunStopped(f"reward {name}: {error}") from error

    def _found(self, index: int, ask: _Ask, outcome: Outcome, keywords: dict[str, Any], rows: int) -> dict[str, Any]:
        """What a worker found, unless that is an exception."""
        name = self.names[index]
        if outcome.failure is not None:
            raise UserError(f"reward {name} failed in another process ({outcome.detail}); {_REMEDY}")
        if "failure" in outcome.value:

            def again(row: int) -> str | None:
                limit = min(self.time_limit, SEARCH_SECONDS)
                value = ask([(only_row(keywords, row), 1)], workers=1, time_limit=limit)[0].value
                return value["failure"][0] if value and "failure" in value else None

            stop(name, Failure(*outcome.value["failure"]), keywords, rows, again=again)
        return outcome.value

    def _one_by_one(self, index: int, ask: _Ask, keywords: dict[str, Any], log: CallLog) -> list[Any]:
        """Score each completion by itself, after a call with all of them was killed."""
        name = self.names[index]
        # In random order: the first ones may all belong to one prompt.
        order = random.Random(0).sample(range(log.rows), log.rows)
        calls = [(only_row(keywords, row), 1) for row in order]
        outcomes = ask(calls, give_up=MOST_FAILURES - self._failed[index])
        scores: list[Any] = [self.on_timeout] * log.rows
        counts: dict[str, int] = {}
        columns: dict[str, list[Any]] = {}
        for row, outcome in zip(order, outcomes, strict=True):
            if outcome.failure in (*_COUNTED, "skipped"):
                counts[outcome.failure] = counts.get(outcome.failure, 0) + 1
                continue
            if "failure" in (outcome.value or {}):
                failure = Failure(*outcome.value["failure"])
                stop(name, dataclasses.replace(failure, row=row), keywords, log.rows, again=lambda _: None)
            found = self._found(index, ask, outcome, keywords, log.rows)
            if not isinstance(found["result"], list) or len(found["result"]) != 1:
                raise UserError(f"reward {name} returned {found['result']!r} for one completion: return one score")
            scores[row] = found["result"][0]
            log.add(found["metrics"], found["counts"])
            for column, values in found["columns"].items():
                columns.setdefault(column, [None] * log.rows)[row] = values[0]
        log.add(columns=columns)
        failed = sum(counts.values())
        self._failed[index] = self._failed[index] + failed if failed == log.rows else 0
        if "skipped" in counts or self._failed[index] >= MOST_FAILURES:
            reasons = " or ".join(self._reason(kind) for kind in counts if kind != "skipped")
            raise RunStopped(f"reward {name}: {MOST_FAILURES} completions in a row, each by itself, {reasons}")
        said = self._count(index, counts, log.rows, log) if counts else f"reward {name}: all together exceeded a limit"
        _log.warning(
            f"{said}. Each completion was scored by itself; a function that compares completions needs larger limits"
        )
        return scores

    # --- what there is to say ------------------------------------------------------------------------------------

    def _reason(self, kind: str) -> str:
        if kind == "timeout":
            return f"were not scored within {self.time_limit:g} s (--rollout.reward_time_limit)"
        if kind == "memory":
            gib = self.memory_limit / (1 << 30)
            return f"took more than {gib:g} GiB (--rollout.reward_memory_limit_gib)"
        return "ended the process that scored them"

    def _count(self, index: int, failures: dict[str, int], rows: int, log: CallLog) -> str:
        """Log how many completions exceeded which limit; the same in words."""
        name = self.names[index]
        log.add(counts={f"rewards/{name}/{_COUNTED[kind]}": float(number) for kind, number in failures.items()})
        parts = [f"{number} of {rows} completions {self._reason(kind)}" for kind, number in failures.items()]
        return f"reward {name}: {', '.join(parts)}; they score {self.on_timeout:g}"


_REMEDY = "mark it with @grpo_lightning.rewards.inline to have it called in the trainer's process"


def _for_workers(name: str, reward: Reward) -> bytes | None:
    """The function for another process; None if it is called in this one."""
    torch, called = sys.modules.get("torch"), innermost(reward)
    is_module = torch is not None and isinstance(called, torch.nn.Module)
    is_async = inspect.iscoroutinefunction(called) or inspect.iscoroutinefunction(type(called).__call__)
    if marked(reward, "inline") or is_module or is_async:
        return None
    try:
        pickled = pickle.dumps(reward)
        reason = "it belongs to __main__" if b"__main__" in pickled else ""
    except Exception as error:
        reason = " ".join(str(error).split())
    if not reason:
        return pickled
    if name not in _TOLD:
        _TOLD.add(name)
        _log.warning(
            f"reward {name} is called in the trainer's process, without a time limit: another process cannot import it "
            f"({reason}); put it at the top level of a module"
        )
    return None
