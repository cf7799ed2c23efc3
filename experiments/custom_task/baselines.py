"""What a forecast is worth, and forecasters that need no language model. All of them answer as the model does: ``+3``.

python -m experiments.custom_task.baselines
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from experiments.custom_task.rewards import VolatilityPenalty, direction, forecast, size_closeness
from experiments.custom_task.series import LARGEST, PriceMoves, best_forecast, sign

Rows = list[dict[str, Any]]


def measure(completions: list[str], rows: Rows) -> dict[str, float]:
    """Means over the rows.

    ``direction``: share of right directions. ``size_error``: points that the size is off, whatever the direction; no
    forecast counts as size 0. ``profit``: points earned on a move by one who buys before a rise is forecast, and sells
    short before a fall. ``rash``: share of forecasts that the volatility penalty touches. ``reward``: what
    custom_task.yaml pays.
    """
    answers = [row["answer"] for row in rows]
    said = [forecast(completion) or 0 for completion in completions]
    came = [int(answer) for answer in answers]
    right, close = direction(completions, answers), size_closeness(completions, answers)
    penalty = VolatilityPenalty()(completions, [row["history"] for row in rows])
    return {
        "direction": float(np.mean(right)),
        "size_error": float(np.mean(np.abs(np.abs(said) - np.abs(came)))),
        "profit": float(np.mean(np.sign(said) * came)),
        "rash": float(np.mean(np.array(penalty) < 0)),
        "reward": float(np.mean(np.array(right) + np.array(close) + 0.5 * np.array(penalty))),
    }


def majority(known: Rows, rows: Rows) -> list[str]:
    """The more frequent direction and the median size of what is known, always."""
    moves = outcomes(known)
    size = int(np.median(np.abs(moves)))
    return [written(size if np.mean(moves > 0) > 0.5 else -size)] * len(rows)


def persistence(_known: Rows, rows: Rows) -> list[str]:
    """The last move once more."""
    return [written(row["history"][-1]) for row in rows]


def autoregression(known: Rows, rows: Rows) -> list[str]:
    """Least squares on the history: the direction from its moves, the size from their sizes."""
    return _two_fits(known, rows, lambda moves: moves)


def autoregression_with_signs(known: Rows, rows: Rows) -> list[str]:
    """The same, with the direction from the moves and their signs: what somebody might try who guesses at the rule."""
    return _two_fits(known, rows, lambda moves: np.hstack([moves, np.sign(moves)]))


def ceiling(_known: Rows, rows: Rows) -> list[str]:
    """What the market's own rule expects; its noise nobody can foresee."""
    return [written(best_forecast(row["history"])) for row in rows]


BASELINES: dict[str, Callable[[Rows, Rows], list[str]]] = {
    "majority": majority,
    "persistence": persistence,
    "least squares": autoregression,
    "least squares with signs": autoregression_with_signs,
    "the market's rule (ceiling)": ceiling,
}


def outcomes(rows: Rows) -> np.ndarray:
    return np.array([int(row["answer"]) for row in rows])


def written(move: float) -> str:
    """A forecast as the model writes it."""
    return f"{sign(move) * min(max(round(abs(move)), 1), LARGEST):+d}"


def _two_fits(known: Rows, rows: Rows, features: Callable[[np.ndarray], np.ndarray]) -> list[str]:
    past, now = (np.array([row["history"] for row in some], dtype=float) for some in (known, rows))
    moves = _fit(features(past), outcomes(known), features(now))
    sizes = _fit(np.abs(past), np.abs(outcomes(known)), np.abs(now))
    return [written(sign(move) * size) for move, size in zip(moves, sizes, strict=True)]


def _fit(inputs: np.ndarray, wanted: np.ndarray, new_inputs: np.ndarray) -> np.ndarray:
    weights = np.linalg.lstsq(_with_constant(inputs), wanted, rcond=None)[0]
    return _with_constant(new_inputs) @ weights


def _with_constant(inputs: np.ndarray) -> np.ndarray:
    return np.hstack([inputs, np.ones((len(inputs), 1))])


def known_rows() -> Rows:
    """All that may be learned from."""
    return PriceMoves(split="start").rows() + PriceMoves(split="train").rows()


if __name__ == "__main__":
    test = PriceMoves(split="test").rows()
    for name, baseline in BASELINES.items():
        figures = measure(baseline(known_rows(), test), test)
        print(f"{name:<28}", "  ".join(f"{key} {value:.3f}" for key, value in figures.items()))
