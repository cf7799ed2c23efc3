"""What a forecast earns. A forecast is a sign and a digit, ``+3`` or ``-2``, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from grpo_lightning.rewards import best, completion_text, inline

TOLERANCE = 4
"""Error of the size at which nothing is paid for it."""


def forecast(completion: Any) -> int | None:
    """The move that a completion forecasts, or None if it is no forecast."""
    text = completion_text(completion).strip()
    return int(text) if re.fullmatch(r"[+-][1-9]", text) else None


@inline
@best(1.0)
def direction(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float | None]:
    """1 if the price went the way that was forecast, else 0."""
    pairs = [(forecast(completion), int(move)) for completion, move in zip(completions, answer, strict=True)]
    return [float(said is not None and (said > 0) == (move > 0)) for said, move in pairs]


@inline
@best(1.0)
def size_closeness(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float | None]:
    """1 for the very move, 1/4 less for each point of size that it is off; 0 in the wrong direction."""
    pairs = [(forecast(completion), int(move)) for completion, move in zip(completions, answer, strict=True)]
    return [
        0.0 if said is None or (said > 0) != (move > 0) else max(0.0, 1 - abs(said - move) / TOLERANCE)
        for said, move in pairs
    ]


class VolatilityPenalty:
    """0 down to -1 for a forecast that is larger than the recent volatility warrants, right or wrong.

    With v the mean size of the moves in the history: -(size - factor * v) / v where that is below 0, at least -1. What
    is no forecast gets -1: it must not pay to be unreadable.

    Args:
        factor: size that is free of penalty, in multiples of v.
    """

    inline = True

    def __init__(self, *, factor: float = 1.5) -> None:
        self.factor = factor

    def __call__(self, completions: Sequence[Any], history: Sequence[list[int]], **_: Any) -> list[float | None]:
        scores: list[float | None] = []
        for completion, moves in zip(completions, history, strict=True):
            said, volatility = forecast(completion), sum(map(abs, moves)) / len(moves)
            excess = 1.0 if said is None else (abs(said) - self.factor * volatility) / volatility
            scores.append(-min(max(excess, 0.0), 1.0))
        return scores
