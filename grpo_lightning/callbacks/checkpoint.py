"""The checkpoints that a run writes where the user asks for no others."""

from __future__ import annotations

from typing import Any

import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint


class RunCheckpoint(ModelCheckpoint):
    """One file, ``step<n>.ckpt``, and the link ``last.ckpt`` to it: where the run is, or where it ended.

    Saved after each validation, at the end of each epoch, wherever the run is stopped between two rollouts (steps,
    time, early stopping), and in between every so many rollouts.

    Args:
        every_n_rollouts: of an epoch.
    """

    def __init__(self, *, every_n_rollouts: int = 50) -> None:
        # A number behind a name that is taken would make `last` an old file's name after a resume.
        super().__init__(
            filename="step{step}", auto_insert_metric_name=False, save_last="link", enable_version_counter=False
        )
        self.every_n_rollouts = every_n_rollouts

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # A run that stops here is not saved at the end of the epoch that this cuts short: resumed, it would take the
        # epoch's other prompts for done.
        stops = trainer.global_step == trainer.max_steps or _stops(trainer)
        due = (batch_idx + 1) % self.every_n_rollouts == 0 and not self._saved_by_validation(trainer)
        if stops or due:
            self._save(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_validation_end(trainer, pl_module)
        if _stops(trainer):
            self._save(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._save(trainer)

    def _saved_by_validation(self, trainer: L.Trainer) -> bool:
        """True if a validation follows at once: its end is the better place, since nothing of it is asked again."""
        loop = trainer.fit_loop
        follows = loop.epoch_loop._should_check_val_fx(loop._data_fetcher)
        return follows and not self._should_save_on_train_epoch_end(trainer)

    def _save(self, trainer: L.Trainer) -> None:
        if not self._should_skip_saving_checkpoint(trainer):  # as where this step is saved already
            figures = self._monitor_candidates(trainer)
            self._save_topk_checkpoint(trainer, figures)
            self._save_last_checkpoint(trainer, figures)


def _stops(trainer: L.Trainer) -> bool:
    """True if a callback (early stopping, a time limit) has asked for the end and the loop will grant it."""
    return trainer.should_stop and trainer.fit_loop._can_stop_early
