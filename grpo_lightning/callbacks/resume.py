"""What a resumed run needs that Lightning does not give it."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import EarlyStopping, Timer

from grpo_lightning import ranks
from grpo_lightning.callbacks.checkpoint import checkpoint_folders
from grpo_lightning.data.sampler import EpochSampler
from grpo_lightning.files import sweep
from grpo_lightning.loggers import MetricsCSV
from grpo_lightning.models.optimizers import forget_moments
from grpo_lightning.policy_module import PolicyModule
from grpo_lightning.rollout.seeds import request_seed

FIGURES = "unwritten_figures"
"""Key of rows of metrics.csv in a checkpoint."""
WRITTEN = ("checkpoints", "samples", "broken")
"""Folders of the run folder whose files are written as drafts first."""


class ExactResume(L.Callback):
    """Random streams that are a function of where the run is, and an epoch that begins where the last one was over.

    Python, numpy and torch, from which a user's reward or augmentation may draw, are seeded before every rollout and
    every evaluation from the seed, the step and the rank. So a resumed run draws what the whole one drew, without any
    generator's state in the checkpoint, on the same number of ranks or another, and however often it is evaluated. Each
    rank has a stream of its own. Generators that a user's code makes for itself, and the processes in which isolated
    rewards run, are not touched; samples and the order of the prompts have seeds of their own.

    Drafts that a killed run has left in its folders are removed.
    """

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        root = Path(trainer.default_root_dir)
        for folder in {root, *(root / name for name in WRITTEN), *checkpoint_folders(trainer)}:
            sweep(folder)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: PolicyModule, checkpoint: dict[str, Any]) -> None:
        """Figures that the disk refused are tried again, or kept: a run that goes on from here makes them no more."""
        for logger in trainer.loggers:
            logger.save()
            if isinstance(logger, MetricsCSV) and logger.unwritten:
                checkpoint[FIGURES] = {step: dict(row) for step, row in logger.unwritten.items()}

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: PolicyModule, checkpoint: dict[str, Any]) -> None:
        """Kept figures are written. The config wins: patience, a time limit, which is this command's, the optimizer."""
        for logger in trainer.loggers:
            if isinstance(logger, MetricsCSV):
                for step, row in checkpoint.get(FIGURES, {}).items():
                    logger.log_metrics(row, step=step)
        for callback in trainer.callbacks:
            state = checkpoint["callbacks"].get(callback.state_key)
            if isinstance(callback, EarlyStopping) and state:
                state["patience"] = callback.patience
            if isinstance(callback, Timer):
                checkpoint["callbacks"].pop(callback.state_key, None)
        forget_moments(checkpoint, pl_module.optimizer_factory, device=trainer.strategy.root_device)

    def on_train_start(self, trainer: L.Trainer, *args: Any) -> None:
        loop, epochs = trainer.fit_loop, trainer.fit_loop.epoch_progress.current
        # Resumed from a checkpoint written after an epoch's last batch, Lightning takes that epoch for done but still
        # for the one that it goes on with: the next would neither be counted, so that a resume from within it would
        # begin it anew, nor announced to callbacks.
        if loop.restarted_mid_epoch and epochs.processed == epochs.ready:
            loop.reset_restart_stage()
        # From one written at an epoch's very end, a run of so many steps would end that epoch once more, with the
        # next one's first batch in it, and lose the others.
        if loop.restarted_on_epoch_end:
            loop.reset_restart_stage()
            loop.epoch_progress.increment_completed()
            loop._restarting = loop.epoch_loop.restarting = False
        _recount(trainer)

    def on_train_batch_start(self, trainer: L.Trainer, *args: Any) -> None:
        _seed("training", trainer.global_step)

    def on_validation_start(self, trainer: L.Trainer, *args: Any) -> None:
        _seed("evaluation", trainer.global_step)


def _recount(trainer: L.Trainer) -> None:
    """Where the epoch is on other data or in other batches: by its old count, Lightning would end it elsewhere."""
    sampler = getattr(trainer.train_dataloader, "sampler", None)
    if not isinstance(sampler, EpochSampler) or sampler.recounted is None:
        return
    (epoch, done), progress = sampler.recounted, trainer.fit_loop.epoch_loop.batch_progress
    if epoch == trainer.current_epoch:
        progress.is_last_batch = False
    else:  # saved while the epoch before, whose last batch it had seen, was still to be ended
        done = int(trainer.num_training_batches)
    shift = done - progress.current.processed
    for name in ("ready", "started", "processed", "completed"):
        setattr(progress.current, name, getattr(progress.current, name) + shift)


def _seed(purpose: str, step: int) -> None:
    seed = request_seed(int(os.environ.get("PL_GLOBAL_SEED", 0)), f"process, {purpose}", step, 0, ranks.rank())
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)  # of every device
