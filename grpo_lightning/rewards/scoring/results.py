"""What a reward function may return, checked before anything is trained on it."""

from __future__ import annotations

import contextlib
import math
import numbers
import reprlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from grpo_lightning.errors import UserError

if TYPE_CHECKING:  # types needs torch, which this floor does without
    from grpo_lightning.types import StepScores


def checked_scores(name: str, result: Any, *, lengths: Sequence[int]) -> list[float | StepScores]:
    """One entry per completion: a finite number, NaN for None, or the scores of its steps.

    Args:
        name: of the reward function, for messages.
        result: what it returned.
        lengths: tokens of each completion.

    Raises:
        UserError: if it is anything else.
    """
    if hasattr(result, "tolist"):  # a tensor or array
        result = result.tolist()
    if not isinstance(result, (list, tuple)):
        raise UserError(f"reward {name} returned {type(result).__name__}: return a list with one score per completion")
    if len(result) != len(lengths):
        raise UserError(
            f"reward {name} returned {len(result)} scores for {len(lengths)} completions: return one for each"
        )
    return [_entry(name, row, score, length) for row, (score, length) in enumerate(zip(result, lengths, strict=True))]


def _entry(name: str, row: int, score: Any, length: int) -> float | StepScores:
    if score is None:
        return math.nan
    if isinstance(score, list):
        return [_step(name, row, step, length) for step in score] or math.nan
    return _number(name, row, score)


def _step(name: str, row: int, step: Any, length: int) -> tuple[float, int]:
    if not isinstance(step, (list, tuple)) or len(step) != 2:
        raise UserError(f"reward {name} returned {step!r} as a step of row {row}: return pairs (score, last token)")
    end = step[1]
    if isinstance(end, bool) or not isinstance(end, numbers.Integral) or not 0 <= int(end) < length:
        raise UserError(
            f"reward {name} returned {end!r} as the last token of a step of row {row}: return an index into its "
            f"completion_ids, 0 to {length - 1}"
        )
    return _number(name, row, step[0]), int(end)


def _number(name: str, row: int, score: Any) -> float:
    if hasattr(score, "item"):  # a tensor or array
        with contextlib.suppress(ValueError, RuntimeError):  # of more than one element
            score = score.item()
    if not isinstance(score, numbers.Real):
        raise UserError(
            f"reward {name} returned {' '.join(reprlib.repr(score).split())} for row {row}: "
            "return a number, or None if it does not apply"
        )
    try:
        number = float(score)
    except OverflowError:  # a whole number of more than 308 digits
        number = math.inf
    if not math.isfinite(number):
        raise UserError(f"reward {name} returned {number} for row {row}: return a finite number, or None")
    return number
