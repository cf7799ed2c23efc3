"""Whether the numbers of a run fit together; each check is one line that names the nearest valid numbers."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable

from grpo_lightning.data.datamodule import PromptDataModule
from grpo_lightning.errors import UserError

log = logging.getLogger(__name__)


def check_windows(prompts: int, *, updates: int, world_size: int) -> None:
    """Every window must hold the same number of whole groups of every rank.

    Args:
        prompts: of one rollout over all ranks (P).
        updates: windows of a rollout (U).
        world_size: number of ranks.
    """
    share = world_size * updates
    if prompts % share:
        raise UserError(
            f"--data.prompts_per_step {prompts} does not divide into {updates} windows "
            f"(--rollout.updates_per_rollout) on {world_size} rank(s); nearest valid: {_nearest(prompts, share)}"
        )


def check_max_steps(max_steps: int, *, done: int, passes: int, updates: int) -> None:
    """Lightning looks at ``max_steps`` between rollouts only: a run cannot end inside one.

    Args:
        max_steps: optimizer steps of the run; -1 for no bound.
        done: optimizer steps that a resumed run has behind it.
        passes: mu.
        updates: U.
    """
    steps, left = passes * updates, max_steps - done
    if left > 0 and left % steps:
        resumed = f" and begins at step {done}" if done else ""
        raise UserError(
            f"--trainer.max_steps {max_steps} ends inside a rollout, which takes {steps} optimizer steps "
            f"({passes} passes x {updates} windows){resumed}; nearest valid: {_nearest(left, steps, start=done)}"
        )


def warn_of_rare_checkpoints(intervals: Iterable[int], *, steps: int) -> None:
    """A checkpoint is due at a multiple of its interval, but a rollout may step over it.

    Args:
        intervals: ``every_n_train_steps`` of each checkpoint callback; 0 where it is not set.
        steps: optimizer steps of one rollout.
    """
    for interval in intervals:
        if interval % steps:
            log.warning(
                "ModelCheckpoint(every_n_train_steps=%d): steps are counted between rollouts of %d optimizer steps, so "
                "most multiples are stepped over; nearest that are not: %s", interval, steps, _nearest(interval, steps),
            )  # fmt: skip


def check_evaluation_share(limit: float | int, data: PromptDataModule, *, flag: str) -> None:
    """A share of the evaluation that is less than one batch evaluates nothing.

    Args:
        limit: share of the batches (float), or their number (int).
        data: after its set-up.
        flag: that ``limit`` was given by.
    """
    for name, prompts in zip(data.eval_names, data.eval_prompts or [[] for _ in data.eval_names], strict=True):
        batches = math.ceil(len(prompts) / data.eval_batch_size)
        if isinstance(limit, float) and limit > 0 and batches and not int(batches * limit):
            raise UserError(
                f"{flag} {limit}: less than one batch of {name}, which has {batches} (--data.eval_batch_size "
                f"{data.eval_batch_size}); give a number of batches, or use --data.eval_limit"
            )


def _nearest(value: int, step: int, *, start: int = 0) -> str:
    """``"8 or 12"``: the multiples of ``step`` around ``value``, counted from ``start``, 0 left out."""
    below = value // step * step
    return " or ".join(str(start + n) for n in (below, below + step) if n)
