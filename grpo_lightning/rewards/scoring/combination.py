"""From several rewards to one: weights that may change, gates, and a bound on the sum."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from grpo_lightning.errors import RunStopped, UserError

WeightSchedule = Callable[[int], float]
"""Optimizer steps done so far to a weight."""


@dataclass(frozen=True, kw_only=True)
class Gate:
    """Lets a reward count only where another one has reached something: form pays only if the answer is right."""

    reward: str
    """Name of the reward that must reach ``at_least``, as in ``rewards/<name>/mean``."""
    at_least: float
    """Of that reward's own score, unweighted."""


class LinearWeight:
    """A weight that moves from ``start`` to ``end`` along a line and stays there: dense rewards first, the core later.

    Args:
        start: at optimizer step 0.
        end: from step ``steps`` on.
        steps: optimizer steps.
    """

    def __init__(self, *, start: float, end: float, steps: int) -> None:
        if steps < 1:
            raise UserError(f"--rollout.reward_weights: LinearWeight.steps {steps}: give at least 1")
        self.start, self.end, self.steps = start, end, steps

    def __call__(self, step: int) -> float:
        return self.start + (self.end - self.start) * min(step / self.steps, 1.0)


class Combination:
    """Weighted sum of the rewards that apply to a completion and whose gates are open, held within bounds.

    Args:
        names: of the rewards.
        weights: one number or schedule per reward; None is 1 each.
        gates: by the name of the reward that is gated.
        clip: least and largest sum; None leaves it as it is.

    Raises:
        UserError: if these do not fit together.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        weights: Sequence[float | WeightSchedule] | None = None,
        gates: Mapping[str, Gate] | None = None,
        clip: tuple[float, float] | None = None,
    ) -> None:
        if weights is not None and len(weights) != len(names):
            raise UserError(
                f"--rollout.reward_weights has {len(weights)} numbers for {len(names)} rewards: give one for each"
            )
        for weight in weights or []:
            if not callable(weight):
                _require_finite(weight)
        for gated, gate in (gates or {}).items():
            for name in (gated, gate.reward):
                if name not in names:
                    raise UserError(f"--rollout.reward_gates names {name!r}; the rewards are {', '.join(names)}")
            if math.isnan(gate.at_least):
                raise UserError(f"--rollout.reward_gates.{gated}.at_least nan: give a number")
        if clip is not None and not clip[0] < clip[1]:
            raise UserError(f"--rollout.reward_clip {list(clip)}: the first number must be below the second")
        self.names = list(names)
        self.gates = dict(gates or {})
        self.clip = clip
        self._weights = [1.0] * len(names) if weights is None else list(weights)

    def weights(self, step: int) -> dict[str, float]:
        """The weights in effect after ``step`` optimizer steps."""
        return {name: _value(name, weight, step) for name, weight in zip(self.names, self._weights, strict=True)}

    @property
    def scheduled(self) -> set[str]:
        """Names of the rewards whose weight changes."""
        return {name for name, weight in zip(self.names, self._weights, strict=True) if callable(weight)}

    def shut(self, terms: Mapping[str, Sequence[float]]) -> dict[str, list[bool]]:
        """Where each gated reward does not count; a reward that does not apply opens no gate.

        Args:
            terms: scores of each reward by name, NaN where it does not apply.
        """
        return {gated: [not key >= gate.at_least for key in terms[gate.reward]] for gated, gate in self.gates.items()}

    def total(self, gated: Mapping[str, Sequence[float]], weights: Mapping[str, float]) -> list[float]:
        """One number per completion; NaN where no reward applies.

        Args:
            gated: scores of some or all rewards by name, 0 where a gate is shut, NaN where a reward does not apply.
            weights: of ``weights``.
        """
        columns = [[weights[name] * score for score in scores] for name, scores in gated.items()]
        return [self._sum(row) for row in zip(*columns, strict=True)]

    def _sum(self, weighted: Sequence[float]) -> float:
        present = [score for score in weighted if not math.isnan(score)]
        if not present:
            return math.nan
        low, high = self.clip or (-math.inf, math.inf)
        return min(max(math.fsum(present), low), high)


def _value(name: str, weight: float | WeightSchedule, step: int) -> float:
    if not callable(weight):
        return float(weight)
    try:
        value = float(weight(step))
    except Exception as error:
        raise RunStopped(
            f"the schedule in --rollout.reward_weights of {name} failed at step {step}: {type(error).__name__}: {error}"
        ) from error
    _require_finite(value)
    return value


def _require_finite(weight: float) -> None:
    """A NaN would read as "does not apply"."""
    if not math.isfinite(weight):
        raise UserError(f"--rollout.reward_weights: {weight} is no weight; give finite numbers")
