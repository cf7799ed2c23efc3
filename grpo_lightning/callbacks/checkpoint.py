"""The checkpoints that a run writes where the user asks for no others, and what can be read off a checkpoint."""

from __future__ import annotations

import copy
import logging
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy
from lightning.pytorch.trainer import call

from grpo_lightning.files import discard, draft_of, put_back, said
from grpo_lightning.strategies import METADATA

log = logging.getLogger(__name__)


class RunCheckpoint(ModelCheckpoint):
    """One file, ``step<n>.ckpt``, and the link ``last.ckpt`` to it: where the run is, or where it ended.

    Saved after each validation, at the end of each epoch, wherever the run is stopped between two rollouts (steps,
    time, early stopping), and in between every so many rollouts. A step that is validated is saved after that, so that
    a run that breaks off while it validates asks all of it again. The file before it is removed once the new one is
    complete and on disk, and the link names it.

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
        self._outdated: list[str] = []

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
            outdated, self._outdated = self._outdated, []
            for path in outdated:
                super()._remove_checkpoint(trainer, path)

    def _remove_checkpoint(self, trainer: L.Trainer, filepath: str) -> None:
        self._outdated.append(filepath)  # once the link does not name it any more

    def succeed(self, state: dict[str, Any], path: Path) -> str:
        """Make ``path`` the run's one file in a kept ``state`` of this callback; returns the one before it, if any.

        A run that goes on from ``path`` removes what its state names, and nothing else.
        """
        older = state["best_model_path"] if self.save_top_k == 1 else ""
        state |= {"best_model_path": str(path), "last_model_path": str(path.with_name("last.ckpt"))}
        return older

    @staticmethod
    def _link_checkpoint(trainer: L.Trainer, filepath: str, linkpath: str) -> None:
        if trainer.is_global_zero:
            _point(Path(linkpath), Path(filepath))
        trainer.strategy.barrier()


class RolloutBoundary(Checkpoint):
    """Remembers, after each rollout, what a checkpoint would hold then besides weights and the optimizer's state.

    Those stay as they are until the next rollout's first optimizer step. So a rollout that must be given up before it
    costs no more than itself: ``save`` writes the checkpoint of the rollout before. A run whose last checkpoint could
    not be written says so at its end, and the command ends with code 1.
    """

    def __init__(self) -> None:
        self._kept: dict[str, Any] | None = None
        self.exit_code = 0
        """Of the command; 1 if there is no checkpoint of the run's end, where one was due."""

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if getattr(trainer.strategy.checkpoint_io, "failing", False):  # on the rank that writes
            self.exit_code = 1
            log.warning(
                "WARNING: the run ends after step %d without its last checkpoint, which could not be written; %s",
                trainer.global_step, goes_on_from(trainer),
            )  # fmt: skip

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        connector, data = trainer._checkpoint_connector, trainer.datamodule
        kept = {
            "epoch": trainer.current_epoch,
            "global_step": trainer.global_step,
            "loops": connector._get_loops_state_dict(),
            "callbacks": call._call_callbacks_state_dict(trainer),
            "lr_schedulers": [config.scheduler.state_dict() for config in trainer.lr_scheduler_configs],
        }
        if data is not None and (state := data.state_dict()):
            kept[type(data).__qualname__] = state
        self._kept = copy.deepcopy(kept)

    def can_save(self, trainer: L.Trainer) -> bool:
        """True if this rank could do so without the others."""
        return not isinstance(trainer.strategy, ModelParallelStrategy | FSDPStrategy)

    def save(self, trainer: L.Trainer, *, together: bool) -> bool:
        """Write the checkpoint of the last rollout's end; False if there is none to write any more.

        Args:
            trainer: of the run, which has taken no optimizer step since.
            together: True if every rank is here.
        """
        if self._kept is None or self._kept["global_step"] != trainer.global_step:
            return False
        checkpoints = [c for c in trainer.checkpoint_callbacks if isinstance(c, ModelCheckpoint)]
        if not checkpoints or not (together or self.can_save(trainer)):
            return False
        own = next((c for c in checkpoints if isinstance(c, RunCheckpoint)), None)
        name = f"{'step' if own else 'last-step'}{trainer.global_step}.ckpt"
        folder = own.dirpath if own is not None and own.dirpath is not None else checkpoint_folders(trainer)[0]
        path, older = Path(folder) / name, ""
        there = path.exists()
        if together:  # what follows is a collective, and storage that hosts do not share is seen by the first alone
            there = trainer.strategy.broadcast(there)
        if not there:
            if own is not None:
                older = own.succeed(self._kept["callbacks"][own.state_key], path)
            content = trainer._checkpoint_connector.dump_checkpoint(weights_only=False) | self._kept
            trainer.strategy.save_checkpoint(content, path)
        if own is not None and trainer.is_global_zero:
            _point(path.with_name("last.ckpt"), path)
        if own is not None and older and own._should_remove_checkpoint(trainer, older, str(path)):
            trainer.strategy.remove_checkpoint(older)
        if together:  # whoever leaves sooner may take the rank that still writes with it
            trainer.strategy.barrier()
        return True


def _point(link: Path, at: Path) -> None:
    """Make ``link`` a link to ``at``, if that is there: a full disk may have kept it from being written.

    (Lightning removes the older link first.)
    """
    if not at.exists():
        return
    try:
        draft = draft_of(link)
        draft.unlink(missing_ok=True)
        draft.symlink_to(os.path.relpath(at, link.parent))
        if link.is_dir() and not link.is_symlink():
            discard(link)
        draft.replace(link)
    except OSError as error:  # the file is what counts
        log.warning("the link %s could not be made: %s", link, said(error))


def checkpoint_folders(trainer: L.Trainer) -> list[Path]:
    """Where the run's checkpoints lie, on this machine; where it writes to others alone, in the run folder as usual."""
    found = [c.dirpath for c in trainer.checkpoint_callbacks if isinstance(c, ModelCheckpoint)]
    here = [Path(folder) for folder in dict.fromkeys(found) if folder is not None and "://" not in str(folder)]
    return here or [Path(trainer.default_root_dir) / "checkpoints"]


def goes_on_from(trainer: L.Trainer) -> str:
    """From which checkpoint the run can go on, in words."""
    newest = newest_checkpoint(checkpoint_folders(trainer), resumable=True)
    header = read_header(newest) if newest is not None else None
    if header is None:
        return "there is no checkpoint to go on from"
    return f"go on with --ckpt_path last, from step {header.step}"


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


def newest_checkpoint(folders: Sequence[Path], *, resumable: bool, weights_only: bool = True) -> Path | None:
    """The complete checkpoint with the most optimizer steps behind it; None if there is none.

    What a file says of itself decides: times of files are those of copies, and of clocks that disagree.

    Args:
        folders: that are looked into.
        resumable: prefer those that a run can go on from, however old.
        weights_only: see ``read_header``.
    """
    for folder in folders:
        put_back(folder)
    # A link may name a file that is gone.
    paths = [path for folder in folders for path in folder.glob("*.ckpt") if path.exists()]
    headers = [(read_header(path, weights_only=weights_only), path) for path in paths]
    complete = [(header, path) for header, path in headers if header is not None]

    def order(entry: tuple[CheckpointHeader, Path]) -> tuple[bool, int, bool]:
        header, path = entry
        return not resumable or header.resumable, header.step, path.stem.startswith("last")

    return max(complete, key=order)[1] if complete else None
