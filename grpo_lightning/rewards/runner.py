"""Calls the reward functions and adds up their scores.

A reward function is called once per rollout with keywords only, in TRL's form, and its result is checked before
anything is trained on it: a wrong length, a NaN or a string would otherwise surface as a strange curve hours later.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import numbers
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from grpo_lightning.errors import UserError

if TYPE_CHECKING:  # types needs torch, which this floor does without
    from grpo_lightning.types import Completion, Prompt, RewardFunction

TRAINER_KEYWORDS = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
"""Keywords that rewards get besides the data's columns, which therefore may not have these names."""


@dataclass(kw_only=True)
class Scores:
    """Rewards of one rollout; lists ``[P][G]`` in the order of the completions."""

    total: list[list[float]]
    """Weighted sum over the rewards that apply; NaN where none does."""
    terms: dict[str, list[list[float]]]
    """Each reward's own scores, unweighted; NaN where it returned None."""
    metrics: dict[str, float] = field(default_factory=dict)
    """What the functions gave to ``log_metric``; the mean if one name was given several times."""
    columns: dict[str, list[Any]] = field(default_factory=dict)
    """What they gave to ``log_extra``, one entry per completion."""


class _Log:
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


class RewardScorer:
    """Scores groups of completions with one or more reward functions.

    Args:
        rewards: functions in TRL's form; plain, ``async`` or objects with ``__call__``.
        weights: one number per reward; 1 each by default.
    """

    def __init__(self, rewards: Sequence[RewardFunction], weights: Sequence[float] | None = None) -> None:
        if not rewards:
            raise UserError("--rollout.rewards is empty: name at least one reward function")
        if weights is not None and len(weights) != len(rewards):
            raise UserError(
                f"--rollout.reward_weights has {len(weights)} numbers for {len(rewards)} rewards: give one for each"
            )
        self.rewards = list(rewards)
        self.weights = [1.0] * len(rewards) if weights is None else [float(weight) for weight in weights]
        self.names = _distinct([_name(reward) for reward in rewards])

    def require_columns(self, columns: Iterable[str]) -> None:
        """Find before the first rollout what ``score`` would find after it.

        Args:
            columns: names that the data has.

        Raises:
            UserError: if a function needs another column.
        """
        for name, reward in zip(self.names, self.rewards, strict=True):
            _require(name, reward, (*TRAINER_KEYWORDS, *columns))

    def score(
        self, prompts: Sequence[Prompt], completions: Sequence[Sequence[Completion]], *, trainer_state: Any = None
    ) -> Scores:
        """Scores of all completions.

        Args:
            prompts: this rank's prompts, ``[P]``.
            completions: their groups, ``[P][G]``.
            trainer_state: handed to the functions as it is; an object with ``global_step`` and the like.

        Raises:
            UserError: if a function needs a column that the data lacks or returns something else than one finite number
                or None per completion.
            RuntimeError: if a function raises; the message names it, and the row if the exception has one.
        """
        sizes = [len(group) for group in completions]
        log = _Log(sum(sizes))
        keywords = _keywords(prompts, completions)
        keywords |= {"trainer_state": trainer_state, "log_extra": log.extra, "log_metric": log.metric}
        returned = self._call_all(keywords)
        flat = {name: _checked(name, result, sum(sizes)) for name, result in zip(self.names, returned, strict=True)}
        total = [_weighted_sum(scores, self.weights) for scores in zip(*flat.values(), strict=True)]
        return Scores(
            total=_grouped(total, sizes),
            terms={name: _grouped(scores, sizes) for name, scores in flat.items()},
            metrics={name: sum(values) / len(values) for name, values in log.metrics.items()},
            columns=log.columns,
        )

    def _call_all(self, keywords: dict[str, Any]) -> list[Any]:
        """What each function returns; the async ones run at the same time."""
        results: list[Any] = [
            _guarded(name, _call, name, reward, keywords) for name, reward in zip(self.names, self.rewards, strict=True)
        ]
        waiting = [index for index, result in enumerate(results) if inspect.isawaitable(result)]
        if waiting:
            awaited = _run_together([_awaited(self.names[index], results[index]) for index in waiting])
            for index, result in zip(waiting, awaited, strict=True):
                results[index] = result
        return results


def _keywords(prompts: Sequence[Prompt], completions: Sequence[Sequence[Completion]]) -> dict[str, Any]:
    """Prompts, completions and data columns, one entry per completion."""
    pairs = [(p, completion) for p, group in zip(prompts, completions, strict=True) for completion in group]
    texts = [prompt.prefill + completion.text for prompt, completion in pairs]
    columns = {name for prompt in prompts for name in prompt.columns}
    keywords: dict[str, Any] = {name: [prompt.columns.get(name) for prompt, _ in pairs] for name in sorted(columns)}
    keywords["prompts"] = [prompt.text if prompt.messages is None else prompt.messages for prompt, _ in pairs]
    keywords["completions"] = [
        text if prompt.messages is None else [{"role": "assistant", "content": text}]
        for (prompt, _), text in zip(pairs, texts, strict=True)
    ]
    keywords["completion_ids"] = [completion.token_ids for _, completion in pairs]
    return keywords


def _call(name: str, reward: Callable[..., Any], keywords: dict[str, Any]) -> Any:
    """Call with the keywords that the function takes: all of them if it has ``**kwargs``."""
    _require(name, reward, keywords)
    parameters = inspect.signature(reward).parameters.values()
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        wanted = {parameter.name for parameter in parameters}
        keywords = {key: value for key, value in keywords.items() if key in wanted}
    return reward(**keywords)


def _require(name: str, reward: Callable[..., Any], known: Iterable[str]) -> None:
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


def _checked(name: str, result: Any, rows: int) -> list[float]:
    """The scores as floats, None as NaN."""
    if hasattr(result, "tolist"):  # a tensor or array
        result = result.tolist()
    if not isinstance(result, (list, tuple)):
        raise UserError(f"reward {name} returned {type(result).__name__}: return a list with one score per completion")
    if len(result) != rows:
        raise UserError(f"reward {name} returned {len(result)} scores for {rows} completions: return one for each")
    return [_checked_score(name, row, score) for row, score in enumerate(result)]


def _checked_score(name: str, row: int, score: Any) -> float:
    if score is None:
        return math.nan
    if hasattr(score, "item"):  # a tensor or array with one element
        score = score.item()
    if not isinstance(score, numbers.Real):
        raise UserError(
            f"reward {name} returned {score!r} for row {row}: return a number, or None if it does not apply"
        )
    if not math.isfinite(score):
        raise UserError(f"reward {name} returned {score} for row {row}: return a finite number, or None")
    return float(score)


def _weighted_sum(scores: Sequence[float], weights: Sequence[float]) -> float:
    present = [weight * score for weight, score in zip(weights, scores, strict=True) if not math.isnan(score)]
    return sum(present) if present else math.nan


def _grouped(flat: list[float], sizes: list[int]) -> list[list[float]]:
    rest = iter(flat)
    return [[next(rest) for _ in range(size)] for size in sizes]


def _name(reward: Any) -> str:
    return getattr(reward, "__name__", None) or type(reward).__name__


def _distinct(names: list[str]) -> list[str]:
    """The names, later ones of the same name with ``_2``, ``_3`` and so on."""
    taken: list[str] = []
    for name in names:
        count, candidate = 1, name
        while candidate in taken:
            count += 1
            candidate = f"{name}_{count}"
        taken.append(candidate)
    return taken
