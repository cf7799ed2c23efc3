"""One call of a reward function, in whatever process: its keywords, what it logs, its result."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import numbers
import pickle
import random
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple
from types import MappingProxyType
from typing import Any

from grpo_lightning.errors import UserError
from grpo_lightning.rewards.scoring.failures import Failure

LOGGERS = ("log_count", "log_extra", "log_metric")
TRAINER_KEYWORDS = ("prompts", "completions", "completion_ids", "trainer_state", *LOGGERS)
"""Keywords that rewards get besides the data's columns, which therefore may not have these names."""
NOT_PER_COMPLETION = ("trainer_state", *LOGGERS)
"""Keywords that are no lists with one entry per completion."""

Reward = Callable[..., Any]


class CallLog:
    """Receives what reward functions log; they may do so from any thread.

    Args:
        rows: completions of the call.
    """

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self._lock = threading.Lock()
        self.metrics: dict[str, list[float]] = {}
        self.columns: dict[str, list[Any]] = {}
        self.counts: dict[str, float] = {}
        """By full name, ``rewards/<name of the function>/<name>``."""

    def loggers(self, name: str) -> dict[str, Callable[..., None]]:
        """The keywords of ``LOGGERS`` for the function of this name."""

        def count(of: str, number: float = 1) -> None:
            with self._lock:
                key = f"rewards/{name}/{of}"
                self.counts[key] = self.counts.get(key, 0.0) + float(number)

        return {"log_count": count, "log_extra": self.extra, "log_metric": self.metric}

    def metric(self, name: str, value: Any) -> None:
        """A number, or a list, array or tensor of them, of which a None does not count.

        The figure is the mean of all that is given under a name, in all calls and on all ranks. So the mean over
        completions needs the list: means that were taken before would count alike, of however many each was.
        """
        value = value.tolist() if hasattr(value, "tolist") else value
        given = value if isinstance(value, (list, tuple)) else [value]
        numbers = [float(number) for number in given if number is not None]
        with self._lock:
            self.metrics.setdefault(name, []).extend(numbers)

    def extra(self, name: str, values: Sequence[Any]) -> None:
        """A column of the samples, one entry per completion."""
        values = list(values)
        if len(values) != self.rows:
            raise UserError(
                f"log_extra({name!r}, ...) got {len(values)} values for {self.rows} completions: give one for each"
            )
        with self._lock:
            self.columns[str(name)] = values

    def add(
        self,
        metrics: Mapping[str, list[float]] = MappingProxyType({}),
        counts: Mapping[str, float] = MappingProxyType({}),
        columns: Mapping[str, list[Any]] = MappingProxyType({}),
    ) -> None:
        """Take over what another log has received."""
        with self._lock:
            for name, values in metrics.items():
                self.metrics.setdefault(name, []).extend(values)
            for name, number in counts.items():
                self.counts[name] = self.counts.get(name, 0.0) + number
            self.columns.update(columns)


def require(name: str, reward: Reward, known: Iterable[str]) -> None:
    """Refuse a function that must be given something else than the ``known`` keywords."""
    known = set(known)
    for parameter in inspect.signature(reward).parameters.values():
        named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if named and parameter.default is parameter.empty and parameter.name not in known:
            columns = ", ".join(sorted(known.difference(TRAINER_KEYWORDS))) or "none"
            close = difflib.get_close_matches(parameter.name, sorted(known), n=1, cutoff=0.75)
            raise UserError(
                f"reward {name} needs a column {parameter.name!r} that the data does not have (its columns: {columns})"
                + (f"; did you mean {close[0]!r}?" if close else "")
            )


def taken(reward: Reward, keywords: dict[str, Any]) -> dict[str, Any]:
    """The keywords that the function takes: all of them if it has ``**kwargs``."""
    parameters = inspect.signature(reward).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return keywords
    wanted = {parameter.name for parameter in parameters}
    return {key: value for key, value in keywords.items() if key in wanted}


def only_row(keywords: dict[str, Any], row: int) -> dict[str, Any]:
    """The keywords for one completion alone."""
    return {key: value if key in NOT_PER_COMPLETION else [value[row]] for key, value in keywords.items()}


def invoke(name: str, reward: Reward, keywords: dict[str, Any], log: CallLog) -> Any:
    """Call the function with what it takes; an ``async`` one returns its coroutine."""
    return reward(**taken(reward, {**keywords, **log.loggers(name)}))


# --- in a worker process ---------------------------------------------------------------------------------------------

_LOADED: dict[bytes, Reward] = {}


def load(pickled: bytes) -> None:
    """Import the function, in the process that workers are forked from."""
    _LOADED[pickled] = pickle.loads(pickled)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise RuntimeError("its module uses the GPU when it is imported; do that in the function's first call")


def answer(pickled: bytes, name: str, keywords: dict[str, Any], rows: int, seed: int) -> dict[str, Any]:
    """Call a loaded function; plain values, with ``failure`` (a ``Failure`` as a tuple) or ``result`` and the logs.

    Args:
        pickled: as given to ``load``.
        name: the function's.
        keywords: lists with one entry per completion, and ``trainer_state``.
        rows: completions.
        seed: of the random numbers that the function may draw: Python's, and those of numpy and torch if its module
            has imported them. (What it imports only when it is called draws by that seed from its next call on.)

    Raises:
        MemoryError: if there is not enough.
    """
    _seed(seed)
    log = CallLog(rows)
    try:
        result = _plain_result(invoke(name, _LOADED[pickled], keywords, log))
        columns = {str(key): [_plain(value, str) for value in values] for key, values in log.columns.items()}
    except MemoryError:
        raise
    except BaseException as error:
        if "can't allocate memory" in str(error):  # torch's
            raise MemoryError from None
        return {"failure": astuple(Failure.of(error))}
    return {"result": result, "metrics": log.metrics, "counts": log.counts, "columns": columns}


def _seed(seed: int) -> None:
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(seed)


def _plain_result(result: Any) -> Any:
    """Scores as they are checked later, without arrays and tensors."""
    if hasattr(result, "tolist"):
        return result.tolist()
    if not isinstance(result, (list, tuple)):
        return _plain(result, _refuse)
    scores = []
    for score in result:
        if hasattr(score, "item"):
            with contextlib.suppress(ValueError, RuntimeError):  # more than one element
                score = score.item()
        scores.append(_plain(score, _refuse))
    return scores


def _plain(value: Any, otherwise: Callable[[Any], Any]) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value if value is None or type(value) in (bool, int, float, str) else _base(value)
    if isinstance(value, (list, tuple)):
        entries = [_plain(entry, otherwise) for entry in value]
        return entries if isinstance(value, list) else tuple(entries)
    if isinstance(value, dict):
        return {str(key): _plain(entry, otherwise) for key, entry in value.items()}
    if hasattr(value, "tolist"):  # tensors, arrays and their scalars
        return _plain(value.tolist(), otherwise)
    return float(value) if isinstance(value, numbers.Real) else otherwise(value)


def _base(value: Any) -> Any:
    """Of a subclass: numpy's float64 is a float, a member of an enumeration may be a text."""
    return next(kind(value) for kind in (int, float, str) if isinstance(value, kind))


def _refuse(value: Any) -> Any:
    kind = type(value).__name__
    raise UserError(f"returned {kind} where a number is due: return one number per completion, None if none applies")
