"""A sampler that breaks down is told of as such, in one line."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpo_lightning.engines.base import RolloutEngine
from grpo_lightning.errors import RunStopped, UserError, in_one_line, lost_peer

DOING = {
    "start": "start",
    "load_weights": "take the new weights",
    "generate": "generate",
    "sleep": "sleep",
    "wake": "wake",
}
"""What an engine is asked for, in words."""


class ReportedEngine:
    """Stands for ``engine``; what its methods raise becomes ``RunStopped``, which says what failed, at what and where.

    What is said already passes: a user's mistake, a stop, and another rank's end, of which the sampler only hears.
    """

    def __init__(self, engine: RolloutEngine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._engine, name)
        return self._reporting(value, DOING[name]) if name in DOING else value

    def _reporting(self, method: Callable[..., Any], doing: str) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*arguments: Any, **keywords: Any) -> Any:
            try:
                return method(*arguments, **keywords)
            except (UserError, RunStopped):
                raise
            except Exception as error:
                if lost_peer(error):
                    raise
                raise RunStopped(
                    f"the sampler ({type(self._engine).__name__}) failed to {doing}: {type(error).__name__}: "
                    f"{in_one_line(error)}{_where(error)}{_remedy(error)}"
                ) from error

        return call


def _where(error: BaseException) -> str:
    """The line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def _remedy(error: BaseException) -> str:
    if "out of memory" not in str(error).lower():
        return ""
    return "; lower --rollout.engine.batch_size, memory_share or max_sequences, or --rollout.max_completion_length"
