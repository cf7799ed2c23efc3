"""What a resumed run needs that Lightning does not give it."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch

from grpo_lightning import ranks
from grpo_lightning.callbacks.checkpoint import checkpoint_folders
from grpo_lightning.files import sweep
from grpo_lightning.rollout.seeds import request_seed

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

    def on_train_start(self, trainer: L.Trainer, *args: Any) -> None:
        # Resumed from a checkpoint written after an epoch's last batch, Lightning takes that epoch for done but still
        # for the one that it goes on with: the next would neither be counted, so that a resume from within it would
        # begin it anew, nor announced to callbacks.
        loop, epochs = trainer.fit_loop, trainer.fit_loop.epoch_progress.current
        if loop.restarted_mid_epoch and epochs.processed == epochs.ready:
            loop.reset_restart_stage()

    def on_train_batch_start(self, trainer: L.Trainer, *args: Any) -> None:
        _seed("training", trainer.global_step)

    def on_validation_start(self, trainer: L.Trainer, *args: Any) -> None:
        _seed("evaluation", trainer.global_step)


def _seed(purpose: str, step: int) -> None:
    seed = request_seed(int(os.environ.get("PL_GLOBAL_SEED", 0)), f"process, {purpose}", step, 0, ranks.rank())
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)  # of every device
