"""The progress bar of a run, in batches: one rollout each."""

from __future__ import annotations

import math
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.callbacks.progress.tqdm_progress import convert_inf


class ProgressBar(TQDMProgressBar):
    """Lightning's bar without the logger's version number."""

    @property
    def sanity_check_description(self) -> str:
        return "Evaluation before training"

    def get_metrics(self, trainer: L.Trainer, pl_module: L.LightningModule) -> dict[str, Any]:
        return {k: v for k, v in super().get_metrics(trainer, pl_module).items() if k != "v_num"}

    @property
    def total_train_batches(self) -> float:
        """Of the epoch, or up to the last step; Lightning takes optimizer steps for batches."""
        trainer = self.trainer
        batches: float = trainer.num_training_batches
        if trainer.max_steps < 0:
            return batches
        return min(
            batches, math.ceil((trainer.max_steps - trainer.global_step) / trainer.lightning_module.steps_per_batch)
        )

    def on_train_start(self, trainer: L.Trainer, *args: Any) -> None:
        """The epoch in which a resumed run goes on does not start, and has some batches behind it."""
        super().on_train_start(trainer, *args)
        self.on_train_epoch_start(trainer)
        done = trainer.fit_loop.epoch_loop.batch_progress.current.ready
        self.train_progress_bar.total = convert_inf(min(self.total_train_batches + done, trainer.num_training_batches))
