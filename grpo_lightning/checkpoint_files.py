"""How checkpoints come to lie on disk: the older one can be used until the new one is complete."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from grpo_lightning.files import discard, replacing, said

log = logging.getLogger(__name__)


class CheckpointFiles(TorchCheckpointIO):
    """Lightning's way to write checkpoints, with three differences.

    - A file is written beside its place, forced to disk and renamed. (Lightning's draft lies in the folder for
      temporary files: from another file system it is copied over, which a kill interrupts; and nothing is forced.)
    - What cannot be written, since the disk is full, does not end the run: that is said, and no older checkpoint is
      removed until one could be written again.
    - Remote addresses are left to Lightning.
    """

    def __init__(self) -> None:
        super().__init__()
        self.failing = False
        """True if the last checkpoint could not be written."""
        self._postponed: list[Path] = []
        """What was to be removed meanwhile."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        if "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        try:
            write(checkpoint, Path(path))
        except OSError as error:
            self.failed(Path(path), error)
        else:
            self.succeeded(Path(path))

    def failed(self, path: Path, error: BaseException) -> None:
        """``path`` could not be written."""
        self.failing = True
        log.warning(
            "WARNING: the checkpoint %s could not be written: %s; training goes on, an older checkpoint stays, and the "
            "next one is tried",
            path, said(error),
        )  # fmt: skip

    def succeeded(self, path: Path) -> None:
        """``path`` is complete and on disk, so older ones are not needed any more."""
        self.failing, postponed, self._postponed = False, self._postponed, []
        for older in postponed:
            if older != path:
                self.remove_checkpoint(older)

    def remove_checkpoint(self, path: Any) -> None:
        if "://" in str(path):
            super().remove_checkpoint(path)
        elif self.failing:
            self._postponed.append(Path(path))
        else:
            discard(Path(path))


def write(content: dict[str, Any], path: Path) -> None:
    """``torch.save``, in one piece or not at all.

    Raises:
        OSError: as where the disk is full; ``path`` is as it was.
    """
    with replacing(path) as file:
        try:
            torch.save(content, file)
        except RuntimeError as error:  # in which torch's writer wraps what the system has refused
            refused = error.__context__
            if not isinstance(refused, OSError):
                raise
            raise OSError(refused.errno, refused.strerror, str(path)) from error
