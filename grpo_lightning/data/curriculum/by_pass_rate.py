"""Prompts by how many of their completions passed so far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from grpo_lightning.data.curriculum.base import Curriculum, Measurement
from grpo_lightning.errors import UserError


class ByPassRate(Curriculum):
    """By how many completions of a prompt passed when it was last asked: not what is solved, nor what is hopeless.

    A rollout's prompts are drawn at random, all different, by weight. That of a prompt that was never asked is 1; that
    of one with pass rate p is

        revisit                                                          if p >= solved_at or p <= hopeless_at
        max(revisit, 1 - ((p - target) / max(target, 1 - target))^2)     else

    At target 0.5 that is 4 p (1 - p): the variance of a reward of 0 or 1, which is the signal that the advantages of a
    group carry (arXiv 2502.12272, 2601.02648); to leave out what is solved is open-instruct's
    ``no_resampling_pass_rate`` (0.875 in its recipes), which ``solved_at`` is with ``revisit`` near 0. ``revisit`` has
    the others asked now and then, since a policy learns and forgets.

    A prompt may come again before all were asked; an epoch is only as many rollouts as would have asked all once. The
    pass rates are part of the checkpoint.

    Args:
        target: pass rate that is asked most.
        reward: name of the reward function that says what passes; null takes the weighted sum of all.
        pass_at: a completion passes with at least this reward.
        solved_at: pass rate from which a prompt counts as solved.
        hopeless_at: pass rate up to which it counts as hopeless.
        revisit: least weight of a prompt, above 0; 1 draws all alike.

    Raises:
        UserError: if a number makes no sense.
    """

    learns_from_rewards = True

    def __init__(
        self,
        *,
        target: float = 0.5,
        reward: str | None = None,
        pass_at: float = 1.0,
        solved_at: float = 1.0,
        hopeless_at: float = 0.0,
        revisit: float = 0.1,
    ) -> None:
        if not 0 <= target <= 1:
            raise UserError(f"--data.curriculum.target {target}: a pass rate, from 0 to 1")
        if not hopeless_at < solved_at:
            raise UserError(
                f"--data.curriculum.hopeless_at {hopeless_at}: must be less than --data.curriculum.solved_at, which is "
                f"{solved_at}"
            )
        if not 0 < revisit <= 1:
            raise UserError(
                f"--data.curriculum.revisit {revisit}: a weight above 0, so that no prompt is lost, and at most 1"
            )
        self.target = target
        self.reward = reward
        self.pass_at = pass_at
        self.solved_at = solved_at
        self.hopeless_at = hopeless_at
        self.revisit = revisit
        self.pass_rates: dict[int, float] = {}
        """Last measured, by row of the source."""

    @property
    def kind(self) -> str:
        return f"ByPassRate(reward={self.reward}, pass_at={self.pass_at:g})"

    def choose(self, *, epoch: int, start: int) -> list[int]:
        # The smallest of exponential draws over weights: weighted drawing without replacement (Efraimidis, Spirakis).
        rng = np.random.default_rng([self.seed % 2**64, epoch, start])
        drawn = rng.exponential(size=len(self.prompts)) / self.weights()
        return [int(number) for number in np.argsort(drawn, kind="stable")[: self.batch_size]]

    def weights(self) -> np.ndarray:
        """How likely each prompt is drawn, relative to one at the target, ``[prompts]``."""
        rates = np.array([self.pass_rates.get(prompt.row, math.nan) for prompt in self.prompts])
        weights = 1 - ((rates - self.target) / max(self.target, 1 - self.target)) ** 2
        weights[(rates >= self.solved_at) | (rates <= self.hopeless_at)] = 0
        return np.where(np.isnan(rates), 1.0, np.maximum(weights, self.revisit))

    def record(self, measurements: Sequence[Measurement]) -> dict[str, float]:
        for measurement in measurements:
            if self.reward is not None and self.reward not in measurement.terms:
                raise UserError(
                    f"--data.curriculum.reward {self.reward}: no such reward; this run has "
                    f"{', '.join(measurement.terms)}"
                )
            scores = measurement.rewards if self.reward is None else measurement.terms[self.reward]
            if scores:
                passed = sum(score >= self.pass_at for score in scores)
                self.pass_rates[self.prompts[measurement.number].row] = passed / len(scores)
        rates = list(self.pass_rates.values())
        if not rates:
            return {}
        return {
            "curriculum/asked": len(rates) / len(self.prompts),
            "curriculum/pass_rate": sum(rates) / len(rates),
            "curriculum/frac_solved": sum(rate >= self.solved_at for rate in rates) / len(rates),
            "curriculum/frac_hopeless": sum(rate <= self.hopeless_at for rate in rates) / len(rates),
        }

    def state_dict(self) -> dict[str, Any]:
        return {"pass_rates": dict(self.pass_rates)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.pass_rates = dict(state["pass_rates"])
