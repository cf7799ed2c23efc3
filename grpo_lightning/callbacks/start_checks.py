"""Everything that shows before a run starts whether its parts fit together, one check at a time.

``fit`` goes through them and stops at the first that fails; ``check`` goes on, and tells of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint

from grpo_lightning.callbacks.geometry import (
    check_estimator,
    check_ratios,
    check_windows,
    warn_of_objective,
    warn_of_rare_checkpoints,
    warn_of_small_micro_batches,
)
from grpo_lightning.callbacks.gold_check import gold_checks
from grpo_lightning.rewards.scoring.runner import RewardScorer
from grpo_lightning.rollout_module import RolloutModule

Check = Callable[[], None]
"""Raises ``UserError`` if something is wrong, and logs a warning if something looks odd."""


def rollout_checks(rollout: Any, trainer: L.Trainer, pl_module: RolloutModule, scorer: RewardScorer) -> Iterator[Check]:
    """Of rollouts and of what is learned from them, their data included.

    Args:
        rollout: the ``RolloutCallback``.
        trainer: with its data module, set up.
        pl_module: that learns.
        scorer: of the rollouts' completions.
    """
    yield from part_checks(rollout, trainer, pl_module, scorer)
    yield from data_checks(rollout, trainer, scorer)


def part_checks(
    rollout: Any, trainer: L.Trainer, pl_module: RolloutModule, scorer: RewardScorer | None
) -> Iterator[Check]:
    """Those that need no data; arguments as in ``rollout_checks``, of which the scorer may be missing."""
    estimator = rollout.advantages or pl_module.estimator
    yield partial(
        check_estimator,
        estimator,
        pl_module,
        group_size=rollout.group_size,
        normalize_each_reward=rollout.normalize_each_reward,
        clips=scorer is not None and scorer.combination.clip is not None,
        tries=rollout.tries,
        mask_truncated=rollout.mask_truncated,
    )
    yield partial(warn_of_objective, pl_module.objective, rollout.reduction)
    yield partial(check_ratios, pl_module, rollout.sampling)
    yield from _size_checks(rollout, trainer, pl_module)


def data_checks(rollout: Any, trainer: L.Trainer, scorer: RewardScorer) -> Iterator[Check]:
    """Whether rewards and data fit together; arguments as in ``rollout_checks``."""
    data = trainer.datamodule
    yield partial(scorer.require_columns, {name for prompt in data.train_prompts for name in prompt.columns})
    yield from gold_checks(
        data,
        scorer,
        most=rollout.check_golds,
        evaluates=rollout.will_evaluate(trainer),
        trainer_state=trainer_state(trainer),
    )


def _size_checks(rollout: Any, trainer: L.Trainer, pl_module: RolloutModule) -> Iterator[Check]:
    data, longest = trainer.datamodule, rollout.sampling.max_completion_length
    yield partial(check_windows, data.prompts_per_step, updates=rollout.updates, world_size=trainer.world_size)
    if not rollout.resumes:
        yield partial(rollout.check_max_steps, trainer)
    checkpoints = [c for c in trainer.checkpoint_callbacks if isinstance(c, ModelCheckpoint)]
    intervals = [c._every_n_train_steps for c in checkpoints]
    yield partial(warn_of_rare_checkpoints, intervals, steps=rollout.passes * rollout.updates)
    most = rollout.micro_batch_tokens
    yield partial(warn_of_small_micro_batches, most, prompt=data.max_prompt_length, completion=longest)
    flag = "--rollout.max_completion_length"
    yield partial(rollout.sampler.allow_length, trainer, pl_module, longest, flag=flag)


def trainer_state(trainer: L.Trainer) -> SimpleNamespace:
    """What reward functions get as ``trainer_state``: how far the run is."""
    return SimpleNamespace(global_step=trainer.global_step, max_steps=trainer.max_steps, epoch=trainer.current_epoch)
