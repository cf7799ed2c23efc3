"""The checkpoints that a run writes where the user asks for no others, and what can be read off a checkpoint."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from grpo_lightning.strategies import METADATA


class RunCheckpoint(ModelCheckpoint):
    """One file, ``step<n>.ckpt``, and the link ``last.ckpt`` to it: where the run is, or where it ended.

    Saved after each validation, at the end of each epoch, wherever the run is stopped between two rollouts (steps,
    time, early stopping), and in between every so many rollouts. A step that is validated is saved after that, so that
    a run that breaks off while it validates asks all of it again.

    Args:
        every_n_rollouts: of an epoch.
        keep_all: keep every file, not the newest alone.
    """

    def __init__(self, *, every_n_rollouts: int = 50, keep_all: bool = False) -> None:
        # A number behind a name that is taken would make `last` an old file's name after a resume.
        super().__init__(
            filename="step{step}", auto_insert_metric_name=False, save_last="link", enable_version_counter=False
        )
        self.every_n_rollouts = every_n_rollouts
        if keep_all:
            self.save_top_k = -1

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        # A run that stops here is not saved at the end of the epoch that this cuts short: resumed, it would take the
        # epoch's other prompts for done.
        stops = trainer.global_step == trainer.max_steps or _stops(trainer)
        due = (batch_idx + 1) % self.every_n_rollouts == 0
        if (stops or due) and not _validation_follows(trainer):
            self._save(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._save(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._save(trainer)

    def _save(self, trainer: L.Trainer) -> None:
        if not self._should_skip_saving_checkpoint(trainer):  # as where this step is saved already
            figures = self._monitor_candidates(trainer)
            self._save_topk_checkpoint(trainer, figures)
            self._save_last_checkpoint(trainer, figures)


def _validation_follows(trainer: L.Trainer) -> bool:
    loop = trainer.fit_loop
    return loop.epoch_loop._should_check_val_fx(loop._data_fetcher)


def _stops(trainer: L.Trainer) -> bool:
    """True if a callback (early stopping, a time limit) has asked for the end and the loop will grant it."""
    return trainer.should_stop and trainer.fit_loop._can_stop_early


@dataclass(frozen=True)
class CheckpointHeader:
    """What a command must know of a checkpoint before it starts any work."""

    step: int
    """Optimizer steps behind it."""
    resumable: bool
    """False if it holds weights alone."""
    callbacks: dict[str, Any]
    """States of the callbacks, by name."""


def read_header(path: Path, *, weights_only: bool = True) -> CheckpointHeader | None:
    """Of a file or a sharded checkpoint's folder, without reading its tensors; None if it is no complete checkpoint.

    Args:
        path: of the file or folder.
        weights_only: refuse what could run code when it is read, as ``torch.load`` does.
    """
    if path.is_dir() and not (path / ".metadata").exists():  # torch's; a kill while it was removed may leave ours
        return None
    file = path / METADATA if path.is_dir() else path
    if not zipfile.is_zipfile(file):  # torch.save writes zip archives, and their directory last
        return None
    try:
        content = torch.load(file, mmap=True, map_location="cpu", weights_only=weights_only)
    except Exception:  # whatever the unpickler stumbles over
        return None
    if not isinstance(content, dict) or "global_step" not in content:
        return None
    return CheckpointHeader(
        step=content["global_step"], resumable="lr_schedulers" in content, callbacks=content.get("callbacks", {})
    )
