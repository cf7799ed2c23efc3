"""Signals by which schedulers and users end a run: SIGUSR1, SIGTERM and Ctrl-C stop it between two rollouts."""

from __future__ import annotations

import logging
import signal
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from grpo_lightning import ranks
from grpo_lightning.callbacks.checkpoint import (
    RolloutBoundary,
    RunCheckpoint,
    goes_on_from,
)
from grpo_lightning.callbacks.export import ExportCallback
from grpo_lightning.errors import UserError
from grpo_lightning.interruption import NAMES, Interrupted, Interruption

log = logging.getLogger(__name__)
USR1 = getattr(signal, "SIGUSR1", 0)
BY_WEIGHT = (0, USR1, signal.SIGINT, signal.SIGTERM)
"""Where ranks got different signals, the last of these is what all go by."""


class StopOnSignal(L.Callback):
    """Ends a ``fit`` that got SIGUSR1, SIGTERM or Ctrl-C after the rollout at hand, with a checkpoint to go on from.

    The signal may reach one rank or all: once a rollout, every rank looks whether it has got one and tells the others.
    So none disturbs an exchange between ranks. What would take long is left out: an evaluation that is not due, and the
    export.

    SIGUSR1, by which a scheduler announces the end of a job's time, waits as long as the rollout takes, and the command
    ends with code 0. Nothing handles it: the command line blocks it before any thread starts, so that the threads and
    processes that a rank starts inherit its blocking instead of dying of it. (Lightning's own requeueing saves from
    inside a signal handler, which may be in the middle of a rollout.)

    SIGTERM (preemption) and Ctrl-C give ``grace_seconds``, and the command ends with code 143 or 130; a second one ends
    it at once. A rollout that is not done after 0.7 of that time is given up if it has taken no optimizer step yet and
    the policy is not in shards, and the checkpoint is that of the rollout before. Otherwise what came after the newest
    checkpoint is lost, and the last line says which that is.

    Args:
        grace_seconds: from SIGTERM or Ctrl-C to the end of the process, whatever it is at. Give what the cluster leaves
            between SIGTERM and SIGKILL, less a little.
    """

    def __init__(self, *, grace_seconds: float = 28.0) -> None:
        if not grace_seconds > 0:
            raise UserError(f"StopOnSignal(grace_seconds={grace_seconds}): seconds to end in, above 0")
        self.grace_seconds = grace_seconds
        self.asked = 0
        """The signal that ends this run; 0 as long as there is none."""
        self._interruption: Interruption | None = None
        self._stepping = False
        """True from a rollout's first optimizer step to its end: weights and progress do not belong together."""
        self._first = True
        self._together = False
        """True once every rank ends the run, at the same place."""
        self._saved_at = ""

    @property
    def exit_code(self) -> int:
        """Of the command; all ranks but the first end with 0, which their starter does not take for a fault."""
        return 128 + self.asked if self.asked in NAMES and self._first else 0

    def on_train_start(self, trainer: L.Trainer, *args: Any) -> None:
        self._first = trainer.is_global_zero
        self._interruption = Interruption(grace_seconds=self.grace_seconds, newest=lambda: goes_on_from(trainer))
        self._interruption.begin()

    def on_train_batch_start(self, trainer: L.Trainer, *args: Any) -> None:
        self._look()
        if self.asked in NAMES:
            self._together = True  # on all ranks, before anything of this rollout is done
            raise Interrupted(self.asked)
        self._may_give_up(trainer)

    def on_before_optimizer_step(self, *args: Any) -> None:
        self._must_not_give_up()
        self._stepping = True

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        self._must_not_give_up()
        self._stepping = False
        self._look()
        loop = trainer.fit_loop
        if not self.asked or loop.epoch_loop._should_check_val_fx(loop._data_fetcher):
            return  # after an evaluation that is due is the better place: nothing of it is lost or asked again
        trainer.limit_val_batches = 0  # Lightning validates whenever it is asked to stop
        self._stop(trainer)

    def on_validation_start(self, trainer: L.Trainer, *args: Any) -> None:
        if not trainer.sanity_checking:
            self._may_give_up(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._must_not_give_up()
        if trainer.sanity_checking:
            return
        self._look()
        if self.asked:
            self._stop(trainer)

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Save what is whole: the rollout was given up, or this rank found another one gone that was to end too."""
        if self._interruption is None:
            return
        self._must_not_give_up()
        signum, boundary = self._interruption.signum or self.asked * self._together, _boundary(trainer)
        try:
            if signum and (self._together or ranks.rank() == 0):
                if boundary is not None and not self._stepping:
                    boundary.save(trainer, together=self._together)
                if ranks.rank() == 0:
                    log.info("stopping by %s; %s", NAMES[signum], goes_on_from(trainer))
        finally:
            self._interruption.end()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not self.asked or not trainer.is_global_zero:
            return
        name, step = NAMES.get(self.asked, "SIGUSR1"), trainer.global_step
        if not any(isinstance(callback, ModelCheckpoint) for callback in trainer.callbacks):
            log.warning("stopping by %s after step %d without a checkpoint: none is wanted", name, step)
        else:  # what is there: a full disk may have refused the last one
            whence = f"go on with --ckpt_path {self._saved_at}" if "://" in self._saved_at else goes_on_from(trainer)
            log.info("stopping by %s after step %d; %s", name, step, whence)

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if self._interruption is not None:
            self._interruption.end()

    def _may_give_up(self, trainer: L.Trainer) -> None:
        if self._interruption is not None:
            boundary = _boundary(trainer)
            self._interruption.gives_up = boundary is None or boundary.can_save(trainer)

    def _must_not_give_up(self) -> None:
        if self._interruption is not None:
            self._interruption.gives_up = False

    def _look(self) -> None:
        """On all ranks alike."""
        told = self._interruption.signum if self._interruption is not None else 0
        if USR1 and USR1 in signal.sigpending():
            signal.sigwait({USR1})  # take it
            told = told or USR1
        weight = ranks.all_max(torch.tensor([max(BY_WEIGHT.index(told), BY_WEIGHT.index(self.asked))]))
        self.asked = int(BY_WEIGHT[int(weight)])

    def _stop(self, trainer: L.Trainer) -> None:
        trainer.should_stop = True
        trainer.fit_loop.min_epochs, trainer.fit_loop.epoch_loop.min_steps = 0, None  # a time limit does not wait
        for callback in trainer.callbacks:
            if isinstance(callback, ExportCallback):
                callback.folder = None
        checkpoints = [callback for callback in trainer.callbacks if isinstance(callback, ModelCheckpoint)]
        if checkpoints and not any(isinstance(checkpoint, RunCheckpoint) for checkpoint in checkpoints):
            self._saved_at = _save(trainer, checkpoints)


def _boundary(trainer: L.Trainer) -> RolloutBoundary | None:
    return next((callback for callback in trainer.callbacks if isinstance(callback, RolloutBoundary)), None)


def _save(trainer: L.Trainer, checkpoints: list[ModelCheckpoint]) -> str:
    """Where only the user's own checkpoints are written, none of which may be due now; returns its file."""
    for checkpoint in checkpoints:
        # At the end of the epoch, which is cut short, they would save the epoch's other prompts as done.
        checkpoint._save_on_train_epoch_end, checkpoint.save_last = False, None
    folder = checkpoints[0].dirpath
    assert folder is not None
    place = f"{str(folder).rstrip('/')}/last-step{trainer.global_step}.ckpt"  # no path: it may lie on another machine
    trainer.save_checkpoint(place)
    return place
