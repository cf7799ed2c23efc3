"""SIGUSR1, by which schedulers announce the end of a job's time, stops a run between two rollouts."""

from __future__ import annotations

import logging
import signal
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from grpo_lightning import ranks
from grpo_lightning.callbacks.checkpoint import RunCheckpoint
from grpo_lightning.callbacks.export import ExportCallback

log = logging.getLogger(__name__)


class StopOnSignal(L.Callback):
    """Ends a ``fit`` that got SIGUSR1 after the rollout at hand, with a checkpoint to go on from.

    The signal may reach one rank or all. Nothing handles it: the command line blocks it before any thread starts, and
    here, once a rollout, every rank looks whether it is pending and tells the others. So it disturbs no exchange
    between ranks, and the threads and processes that a rank starts inherit its blocking instead of dying of it.
    (Lightning's own requeueing saves from inside a signal handler, which may be in the middle of a rollout.)

    What would take long is left out: an evaluation that is not due, and the export.
    """

    def __init__(self) -> None:
        self.asked = False

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        self._look()
        loop = trainer.fit_loop
        if not self.asked or loop.epoch_loop._should_check_val_fx(loop._data_fetcher):
            return  # after an evaluation that is due is the better place: nothing of it is lost or asked again
        trainer.limit_val_batches = 0  # Lightning validates whenever it is asked to stop
        self._stop(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.sanity_checking:
            return
        self._look()
        if self.asked:
            self._stop(trainer)

    def _look(self) -> None:
        """On all ranks alike."""
        told = hasattr(signal, "SIGUSR1") and signal.SIGUSR1 in signal.sigpending()
        if told:
            signal.sigwait({signal.SIGUSR1})  # take it
        self.asked |= bool(ranks.all_max(torch.tensor([float(told)])))

    def _stop(self, trainer: L.Trainer) -> None:
        trainer.should_stop = True
        trainer.fit_loop.min_epochs, trainer.fit_loop.epoch_loop.min_steps = 0, None  # a time limit does not wait
        for callback in trainer.callbacks:
            if isinstance(callback, ExportCallback):
                callback.folder = None
        checkpoints = [callback for callback in trainer.callbacks if isinstance(callback, ModelCheckpoint)]
        if not checkpoints:
            log.warning("stopping by SIGUSR1 after step %d without a checkpoint: none is wanted", trainer.global_step)
            return
        if not any(isinstance(checkpoint, RunCheckpoint) for checkpoint in checkpoints):
            _save(trainer, checkpoints)
        log.info("stopping by SIGUSR1 after step %d; go on with --ckpt_path last", trainer.global_step)


def _save(trainer: L.Trainer, checkpoints: list[ModelCheckpoint]) -> None:
    """Where only the user's own checkpoints are written, none of which may be due now."""
    for checkpoint in checkpoints:
        # At the end of the epoch, which is cut short, they would save the epoch's other prompts as done.
        checkpoint._save_on_train_epoch_end, checkpoint.save_last = False, None
    folder = checkpoints[0].dirpath
    assert folder is not None
    trainer.save_checkpoint(Path(folder) / f"last-step{trainer.global_step}.ckpt")
