"""The data of the task: moves of a synthetic price, cut into questions.

    question: +2,-1,+3,+1,-4,-2?      answer: -1      (down, by 1)

The market's rule: a small move goes on, a large one is taken back. In 80% of all cases the next move has the last one's
direction if that was 4 points or less, and the other one if it was more. Its size is 1 + 3s/8 (rounded down) plus
noise, from 1 to 9, where s is the size of the last two moves together. A forecaster sees neither rule nor noise, and
nobody can be right about more than 80% of the directions in the long run.
"""

from __future__ import annotations

import random
from typing import Any, Literal

from experiments.custom_task.rewards import direction, forecast
from grpo_lightning.data import PromptSource
from grpo_lightning.errors import UserError
from grpo_lightning.types import RewardFunction

HISTORY = 6
"""Moves that a question shows."""
SMALL = 4
"""Largest move that the next one goes on from; a larger one is taken back."""
CERTAINTY = 0.8
"""Share of moves whose direction follows the rule."""
NOISE = (-2, -1, 0, 1, 3)
LARGEST = 9
HABIT = 0.5
"""Share of rows in which the analyst expects the last direction to go on, whatever happens."""
SPLITS = {"start": (0, 4_000), "train": (4_000, 12_000), "validation": (12_000, 13_000), "test": (13_000, 15_000)}
"""First move of each split, and the one behind its last: what is forecast lies later than all that is trained on."""


class PriceMoves(PromptSource):
    """One question for every stretch of ``HISTORY`` moves of a split, asking for the move that came next.

    The market is the same in every run. A split is a span of its time: no move is in two splits. Rows carry
    ``question``, ``answer``, ``history`` (the moves as numbers) and ``analyst``, what the supervised start imitates:
    the analyst knows what came, but half the time names the last direction out of habit.

    Args:
        split: ``start`` (supervised training), ``train`` (GRPO), ``validation`` (choices are made on it) or ``test``.
    """

    def __init__(self, *, split: Literal["start", "train", "validation", "test"] = "train") -> None:
        if split not in SPLITS:
            raise UserError(
                f"--data.source.split {split!r} is unknown to PriceMoves; choose one of {', '.join(SPLITS)}"
            )
        self.split = split
        self.name = split

    def rows(self) -> list[dict[str, Any]]:
        first, end = SPLITS[self.split]
        moves, habits = simulate(end), random.Random(f"analyst, {self.split}")
        rows = []
        for now in range(first + HISTORY, end):
            history, after = moves[now - HISTORY : now], moves[now]
            said = abs(after) * sign(history[-1]) if habits.random() < HABIT else after
            question = ",".join(f"{move:+d}" for move in history) + "?"
            rows.append({"question": question, "answer": f"{after:+d}", "history": history, "analyst": f"{said:+d}"})
        return rows

    @property
    def correctness(self) -> RewardFunction:
        return direction

    def extract_answer(self, completion: str) -> str | None:
        said = forecast(completion)
        return None if said is None else f"{said:+d}"


def simulate(length: int) -> list[int]:
    """The market's first ``length`` moves, always the same."""
    draws = random.Random("price moves")
    moves = [1, 2]
    while len(moves) < length:
        likeliest = best_forecast(moves)
        follows_rule = draws.random() < CERTAINTY
        size = min(max(abs(likeliest) + draws.choice(NOISE), 1), LARGEST)
        moves.append(size * sign(likeliest) * (1 if follows_rule else -1))
    return moves


def best_forecast(history: list[int]) -> int:
    """What one who knew the rule would say: the likelier direction, and the median size."""
    before, last = history[-2:]
    size = 1 + 3 * (abs(before) + abs(last)) // 8
    return size * sign(last) * (1 if abs(last) <= SMALL else -1)


def sign(move: float) -> int:
    return 1 if move > 0 else -1
