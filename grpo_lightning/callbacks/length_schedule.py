"""Longer completions as training goes on."""

from __future__ import annotations

from typing import Any

import lightning as L

from grpo_lightning.callbacks.rollout import RolloutCallback
from grpo_lightning.errors import UserError

FLAG = "--trainer.callbacks CompletionLengthSchedule"


class CompletionLengthSchedule(L.Callback):
    """The completion limit grows linearly from ``start`` to ``end`` tokens over ``steps`` optimizer steps.

    Short completions first make early training cheap and its credit clear; a limit that falls works too. It takes the
    place of ``--rollout.max_completion_length`` in training, changes between rollouts, and depends on the optimizer
    step alone, so that a resumed run has the limit it would have had. The sampler is made for the longest from the
    beginning. Evaluation keeps its own limit. With the ``constant_length`` reduction the divisor is the limit in use.
    Logs ``completions/limit``.

    Args:
        start: limit of the first rollout, in tokens.
        end: limit from ``steps`` on; null takes ``--rollout.max_completion_length``.
        steps: optimizer steps in which it gets there.
    """

    def __init__(self, *, start: int, steps: int, end: int | None = None) -> None:
        for name, value in (("start", start), ("end", end), ("steps", steps)):
            if value is not None and value < 1:
                raise UserError(f"{FLAG}.{name} {value}: must be at least 1")
        self.start, self.end, self.steps = start, end, steps
        self._rollout: RolloutCallback

    def limit(self, step: int) -> int:
        """Tokens that a completion may have at optimizer step ``step``."""
        assert self.end is not None
        return self.start + round((self.end - self.start) * min(step / self.steps, 1.0))

    def setup(self, trainer: L.Trainer, pl_module: Any, stage: str) -> None:
        if stage != "fit":
            return
        if not pl_module.learns_from_rollouts:
            raise UserError(f"{FLAG}: {type(pl_module).__name__} samples no completions to train on; leave it out")
        self._rollout = next(c for c in trainer.callbacks if isinstance(c, RolloutCallback))
        if self.end is None:
            self.end = self._rollout.sampling.max_completion_length
        self._rollout.sampler.allow_length(trainer, pl_module, max(self.start, self.end), flag=FLAG)

    # Not right before a rollout, where the rollouts' own callback may come first.
    def on_train_start(self, trainer: L.Trainer, *args: Any) -> None:
        self._rollout.limit_completions(self.limit(trainer.global_step))

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        self._rollout.limit_completions(self.limit(trainer.global_step))

    def on_step_figures(self, trainer: L.Trainer, pl_module: Any, figures: dict[str, float]) -> None:
        """Log the limit under which the rollout was sampled."""
        figures["completions/limit"] = float(self._rollout.sampling.max_completion_length)
