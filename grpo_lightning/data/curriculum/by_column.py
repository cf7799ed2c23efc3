"""Prompts from easy to hard, by a column of the data."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from typing import Any

from grpo_lightning.data.curriculum.base import Measurement, Ordered
from grpo_lightning.errors import UserError
from grpo_lightning.types import Prompt


class ByColumn(Ordered):
    """From easy to hard by a column of the data: competence-based curriculum learning (arXiv 1903.09848), linear. (Kimi
    k1.5, arXiv 2501.12599, goes from easy to hard tasks too.)

    Prompts are sorted from easy to hard, by chance within a level. In rollout t of the run (from 1), the easiest
    ``t / rollouts`` of them are open. A rollout draws from the open prompts that its epoch has not asked yet, and takes
    the next in order where these are too few. So each epoch still asks every prompt at most once; with ``rollouts``
    left open the first epoch goes through the levels one after the other, each as long as it has prompts, and with
    fewer the harder ones come in sooner, among easy ones. After ``rollouts`` every epoch is shuffled.

    Args:
        column: numbers, or text with a number in it ("Level 3"); low is easy.
        order: the column's values from easy to hard, where they are no numbers or stand the other way round; null is an
            empty value.
        rollouts: rollouts of the run until all prompts are open; null takes the first epoch.
        mix: share of each rollout that is drawn from all levels from the first rollout on, so that easy questions are
            not forgotten and hard ones not met too late; 1 is a shuffled epoch.

    Raises:
        UserError: if a number makes no sense, or a row has no level.
    """

    def __init__(
        self,
        column: str = "level",
        *,
        order: list[int | float | str | None] | None = None,
        rollouts: int | None = None,
        mix: float = 0.0,
    ) -> None:
        if rollouts is not None and rollouts < 1:
            raise UserError(f"--data.curriculum.rollouts {rollouts}: a number of rollouts, at least 1")
        if not 0 <= mix <= 1:
            raise UserError(f"--data.curriculum.mix {mix}: a share of the prompts, from 0 to 1")
        places = [_name(value) for value in order or []]
        for value in places:
            if places.count(value) > 1:
                raise UserError(f"--data.curriculum.order names {value} twice; name each value once")
        self.column = column
        self.places = {value: place for place, value in enumerate(places)}
        self.rollouts = rollouts
        self.mix = mix
        self._levels: list[float] = []

    def prepare(self, prompts: Sequence[Prompt]) -> None:
        super().prepare(prompts)
        self._levels = [self._level(prompt) for prompt in prompts]

    def _level(self, prompt: Prompt) -> float:
        where = f"--data.source {prompt.source}, row {prompt.row}"
        if self.column not in prompt.columns:
            raise UserError(
                f"--data.curriculum.column {self.column}: {where} has no such column; its columns are: "
                f"{', '.join(prompt.columns)}"
            )
        value = prompt.columns[self.column]
        if self.places:
            if _name(value) not in self.places:
                raise UserError(
                    f"--data.curriculum.order does not have {value!r}, which {where} has as {self.column!r}; add it"
                )
            return float(self.places[_name(value)])
        number = re.search(r"-?\d+(\.\d+)?", value) if isinstance(value, str) else None
        level = float(number.group()) if number else value
        if not isinstance(level, int | float) or not math.isfinite(level):
            raise UserError(
                f"--data.curriculum.column {self.column}: {where} has {value!r}, which is no number; give all values "
                "from easy to hard by --data.curriculum.order (null is an empty one)"
            )
        return float(level)

    def order(self, epoch: int) -> list[int]:
        rng = random.Random(f"curriculum by column, seed {self.seed}, epoch {epoch}")
        rollouts = len(self.prompts) // self.batch_size
        numbers = rng.sample(range(len(self.prompts)), len(self.prompts))
        # Which prompts are left out is chance: else it would always be the hardest.
        used, left_out = numbers[: rollouts * self.batch_size], numbers[rollouts * self.batch_size :]
        mixed, waiting = used[: round(self.mix * len(used))], used[round(self.mix * len(used)) :]
        waiting.sort(key=self._levels.__getitem__)
        opened: list[int] = []
        order: list[int] = []
        next_waiting = 0
        for rollout in range(rollouts):
            batch = mixed[len(mixed) * rollout // rollouts : len(mixed) * (rollout + 1) // rollouts]
            wanted = self.batch_size - len(batch)
            share = min(1.0, (epoch * rollouts + rollout + 1) / (self.rollouts or rollouts))
            now_open = max(math.ceil(share * len(waiting)), next_waiting + wanted - len(opened))
            opened += waiting[next_waiting:now_open]
            next_waiting = now_open
            for _ in range(wanted):
                place = rng.randrange(len(opened))
                opened[place], opened[-1] = opened[-1], opened[place]
                batch.append(opened.pop())
            rng.shuffle(batch)  # the windows of a rollout are cut in this order, and should be alike
            order += batch
        return order + left_out

    def record(self, measurements: Sequence[Measurement]) -> dict[str, float]:
        """The mean level of a rollout's prompts (its place in ``order``, from 0, where that is given)."""
        levels = [self._levels[measurement.number] for measurement in measurements]
        return {"curriculum/level": sum(levels) / len(levels)} if levels else {}

    def settings(self) -> dict[str, Any]:
        own = {"column": self.column, "order": list(self.places), "rollouts": self.rollouts, "mix": self.mix}
        return {**super().settings(), **own}


def _name(value: Any) -> str:
    """For comparing: 3 and "3" are the same level."""
    return "null" if value is None else str(value)
