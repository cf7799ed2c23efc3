"""Whether the disk of the run folder holds what a run writes."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint

from grpo_lightning.callbacks.export import ExportCallback
from grpo_lightning.errors import UserError
from grpo_lightning.models.size import count_weights, in_words, state_bytes
from grpo_lightning.policy_module import PolicyModule

WIDTHS = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, kw_only=True)
class Written:
    """Bytes that a run writes; tables and samples are small beside them."""

    checkpoint: float
    """One: what is trained and the optimizer's state; 0 if none is written."""
    export: float
    """The trained policy at the end; 0 if it is not exported."""

    def at_once(self, *, resumed: bool) -> float:
        """The most that is there at a time, of checkpoints of which the newest alone is kept.

        A new one is complete before the one before it is removed. A run that goes on has one there already.
        """
        there = self.checkpoint if resumed else 0.0
        return max(2 * self.checkpoint, self.checkpoint + self.export) - there


def written(trainer: L.Trainer, pl_module: PolicyModule) -> Written:
    """What a run writes; a critic of its own and a reference that moves are not counted."""
    weights = count_weights(
        pl_module.policy_path, adapter=pl_module.adapter, trust_remote_code=pl_module.trust_remote_code
    )
    kept = WIDTHS[pl_module.dtype_name] + state_bytes(pl_module.optimizer_factory)
    saves = any(isinstance(callback, ModelCheckpoint) for callback in trainer.checkpoint_callbacks)
    exports = [c for c in trainer.callbacks if isinstance(c, ExportCallback) and c.folder]
    width = WIDTHS[exports[0].dtype or pl_module.dtype_name] if exports else 0
    return Written(checkpoint=kept * weights["trained"] * saves, export=float(width * weights["all"]))


def free_bytes(root: Path) -> int:
    """Of the disk that ``root`` is on, or will be."""
    folder = root.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def require_space(trainer: L.Trainer, pl_module: PolicyModule, *, resumed: bool) -> None:
    """Refuse a run whose first checkpoints would fill the disk.

    Args:
        trainer: with its callbacks.
        pl_module: that is trained.
        resumed: the run goes on, and its last checkpoint is there already.
    """
    root = Path(trainer.default_root_dir)
    parts, free = written(trainer, pl_module), free_bytes(root)
    needed = parts.at_once(resumed=resumed)
    if needed > free:
        raise UserError(
            f"--trainer.default_root_dir {root}: {in_words(free)} are free there, and the run writes "
            f"{in_words(needed)} (a checkpoint has {in_words(parts.checkpoint)}, the next is written before it is "
            f"removed; the export has {in_words(parts.export)}); make room, choose another disk, or write less: "
            "--export.folder null, --export.dtype bfloat16, --model.adapter grpo_lightning.models.LoRA"
        )
