"""What a curriculum is: it chooses the prompts of each rollout."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from grpo_lightning import ranks
from grpo_lightning.types import Prompt

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What a rollout says of one prompt."""

    number: int
    """Of the prompt among those to train on."""
    rewards: list[float]
    """Total reward of each completion that has one."""
    terms: dict[str, list[float]]
    """The same for each reward function, by name."""


class Curriculum(ABC):
    """Chooses the prompts of each rollout; your own is a subclass in one file, named by ``class_path``.

    What is chosen may depend on the epoch, the place in it, the seed and what ``record`` was told, and on nothing else:
    then all ranks choose the same, and a resumed run chooses what the unbroken one would have. An epoch has as many
    rollouts as without a curriculum: the number of prompts divided by those of a rollout.
    """

    learns_from_rewards: bool = False
    """Whether the choice depends on ``record``: then it needs a module that learns from rollouts."""
    prompts: Sequence[Prompt] = ()
    """Those that there are to train on."""
    batch_size: int = 0
    """Prompts of a rollout over all ranks."""
    seed: int = 0

    def prepare(self, prompts: Sequence[Prompt]) -> None:
        """Look at the prompts that there are to train on, before anything heavy is loaded.

        Raises:
            UserError: if they cannot be used.
        """
        self.prompts = prompts
        self._numbers = {prompt.row: number for number, prompt in enumerate(prompts)}

    def begin(self, *, batch_size: int, seed: int) -> None:
        """Called after ``prepare``, before the first choice."""
        self.batch_size = batch_size
        self.seed = seed

    @abstractmethod
    def choose(self, *, epoch: int, start: int) -> list[int]:
        """Numbers of the ``batch_size`` prompts of one rollout.

        A number that stands there twice is asked twice: two groups, each with samples and advantages of its own.

        Args:
            epoch: from 0.
            start: prompts that this epoch has asked before.
        """

    def settings(self) -> dict[str, Any]:
        """What a place in an epoch depends on, in plain values: a run with others starts the epoch again."""
        return {"curriculum": type(self).__name__}

    @property
    def kind(self) -> str:
        """What has to be the same for what was learned to mean the same."""
        return type(self).__name__

    # --- measuring -----------------------------------------------------------------------------------------------

    def measure(self, prompts: Sequence[Prompt], rewards: Tensor, terms: dict[str, Tensor]) -> dict[str, float]:
        """Have ``record`` look at a rollout of all ranks; every rank must call it, and each gets the same figures.

        Args:
            prompts: this rank's; ranks may bring different numbers of them.
            rewards: total rewards, NaN where none applies, ``[P, G]``.
            terms: each reward function's own, ``[P, G]``.

        Returns:
            What to log.
        """
        own = [
            Measurement(
                number=self._numbers[prompt.row],
                rewards=_known(rewards[p]),
                terms={name: _known(term[p]) for name, term in terms.items()},
            )
            for p, prompt in enumerate(prompts)
        ]
        return self.record(sorted(ranks.gather_objects(own), key=lambda measurement: measurement.number))

    def record(self, measurements: Sequence[Measurement]) -> dict[str, float]:
        """Learn from a rollout of all ranks; returns figures to log."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What was learned, in plain values: the same on every rank, since rank 0 alone writes it."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 (most have learned nothing)
        """Go on with a saved state."""

    def to_save(self) -> dict[str, Any]:
        """What a checkpoint keeps: what was learned, and of what."""
        learned = self.state_dict()
        return {"of": [self.kind, len(self.prompts)], "learned": learned} if learned else {}

    def restore(self, saved: dict[str, Any]) -> None:
        """Go on with what a checkpoint kept, if it is of the same kind and of as many prompts."""
        own = [self.kind, len(self.prompts)]
        if saved["of"] == own:
            self.load_state_dict(saved["learned"])
        else:
            log.warning(
                "the checkpoint's curriculum is %s of %d prompts, this run's is %s of %d: it has learned nothing yet",
                *saved["of"], *own,
            )  # fmt: skip


class Ordered(Curriculum):
    """A curriculum that knows an epoch's order beforehand."""

    _opened: tuple[int, list[int]] | None = None

    @abstractmethod
    def order(self, epoch: int) -> list[int]:
        """Numbers of the prompts in the order of an epoch; those past its last whole rollout are left out of it."""

    def begin(self, *, batch_size: int, seed: int) -> None:
        super().begin(batch_size=batch_size, seed=seed)
        self._opened = None

    def choose(self, *, epoch: int, start: int) -> list[int]:
        if self._opened is None or self._opened[0] != epoch:
            self._opened = (epoch, self.order(epoch))
        return self._opened[1][start : start + self.batch_size]

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "batch_size": self.batch_size}


def _known(rewards: Tensor) -> list[float]:
    return [reward for reward in rewards.tolist() if not math.isnan(reward)]
