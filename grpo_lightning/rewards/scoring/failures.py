"""An exception of a reward function: from the process where it was raised to the line that ends the run."""

from __future__ import annotations

import logging
import os
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

_OURS = tuple(str(Path(__file__).parents[1] / folder) + os.sep for folder in ("scoring", "isolation"))
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
    about = _about(keywords, int(where.rpartition(" ")[2])) if where.startswith(" at row") else ""
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
    entries = [entry for entry in traceback.extract_tb(error.__traceback__) if not entry.filename.startswith(_OURS)]
    written = [entry for entry in entries if not entry.filename.startswith(_INSTALLED)]
    return "".join(traceback.format_list((written or entries)[-10:]))


def _about(keywords: dict[str, Any], row: int) -> str:
    """How the row's question begins; its prompt, if that column is missing or holds something else than texts."""
    for name in ("question", "prompts"):
        prompts = keywords.get(name, ())
        if row < len(prompts) and (text := _text(prompts[row])):
            return f" (its prompt begins {textwrap.shorten(text, 60, placeholder=' ...')!r})"
    return ""


def _text(prompt: Any) -> str:
    """A text, or the last one of a chat; empty for what is neither."""
    if isinstance(prompt, list) and prompt and isinstance(prompt[-1], dict):
        prompt = prompt[-1].get("content")
    return prompt if isinstance(prompt, str) else ""
