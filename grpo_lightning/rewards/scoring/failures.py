"""An exception of a reward function: from the process where it was raised to the line that ends the run."""

from __future__ import annotations

import logging
import sysconfig
import textwrap
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from grpo_lightning.errors import RunStopped, UserError

SEARCH_SECONDS = 15.0
"""For finding the completion that a function raises on."""

_OURS = tuple(str(Path(__file__).with_name(f"{name}.py")) for name in ("calling", "invocation", "isolation_worker"))
_INSTALLED = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Failure:
    """What a reward function raised, in a form that passes from process to process."""

    kind: str
    """The exception's class."""
    message: str
    row: int | None
    """Its attribute ``row``, if it has one."""
    trace: str
    """The traceback's entries in the user's own files."""
    mistake: bool
    """True for a ``UserError``, whose message says all."""

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Describe an exception that has just been caught."""
        row = getattr(error, "row", None)
        try:
            message = str(error)[:2000]
        except Exception:
            message = "(its message cannot be printed)"
        is_row = isinstance(row, int) and row >= 0
        return cls(
            type(error).__name__, message, row if is_row else None, _entries(error), isinstance(error, UserError)
        )


def stop(
    name: str,
    failure: Failure,
    keywords: dict[str, Any],
    rows: int,
    *,
    again: Callable[[int], str | None],
    cause: BaseException | None = None,
) -> NoReturn:
    """End the run, with the user's part of the traceback and one line that names function and completion.

    Args:
        name: the function's.
        failure: what it raised.
        keywords: what it was called with.
        rows: completions of the call.
        again: calls it with one completion; the class of the exception that it raises then, None if it does not.
        cause: the exception itself, where it was raised in this process.

    Raises:
        UserError: if the function raised one.
        RunStopped: otherwise.
    """
    if failure.mistake:
        is_ours = failure.message.startswith(("log_extra(", "reward "))
        raise UserError(failure.message if is_ours else f"reward {name}: {failure.message}") from cause
    if failure.trace:
        log.error(f"reward {name} raised {failure.kind}:\n{failure.trace.rstrip()}")
    where = f" at row {failure.row}" if failure.row is not None else _where(failure.kind, rows, again)
    prompts = keywords.get("question", keywords.get("prompts", []))
    number = int(where.rpartition(" ")[2]) if where.startswith(" at row") else rows
    about = f" (its prompt begins {_beginning(prompts[number])!r})" if number < len(prompts) else ""
    raise RunStopped(
        f"reward {name} failed{where}: {failure.kind}: {' '.join(failure.message.split())}{about}"
    ) from cause


def _where(kind: str, rows: int, again: Callable[[int], str | None]) -> str:
    """The first completion on which the function, called with it alone, raises the same kind of exception."""
    end = time.monotonic() + SEARCH_SECONDS
    for row in range(rows):
        if again(row) == kind:
            return f" at row {row}"
        if time.monotonic() > end:
            return ""
    return " on the whole batch, but on no completion alone"


def _entries(error: BaseException) -> str:
    entries = [entry for entry in traceback.extract_tb(error.__traceback__) if entry.filename not in _OURS]
    written = [entry for entry in entries if not entry.filename.startswith(_INSTALLED)]
    return "".join(traceback.format_list((written or entries)[-10:]))


def _beginning(prompt: Any) -> str:
    text = prompt if isinstance(prompt, str) else str(prompt[-1].get("content", "")) if prompt else ""
    return textwrap.shorten(text, 60, placeholder=" ...")
