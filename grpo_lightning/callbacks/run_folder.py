"""The run folder: found writable before work starts, an older run moved aside, the resolved config saved."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.cli import SaveConfigCallback

from grpo_lightning import ranks
from grpo_lightning.errors import UserError

log = logging.getLogger(__name__)
RUN_FILES = ("config*.yaml", "metrics.csv", "evaluations.jsonl", "checkpoints", "hf", "samples", "tensorboard/*")


class RunFolderCallback(SaveConfigCallback):
    """Prepares ``--trainer.default_root_dir`` for a run and writes ``config.yaml`` there.

    A new ``fit`` in a folder that holds a run moves that run's files to ``previous-<n>/``: nothing is lost, nothing is
    mixed. A resumed ``fit`` (``--ckpt_path``) goes on in place and saves its config as ``config-<n>.yaml``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Listed before Lightning opens the loggers, which put their first files into the folder ahead of ``setup``.
        root = Path(self.config.trainer.default_root_dir)
        self.older_files = [path for pattern in RUN_FILES for path in root.glob(pattern)]

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        root = Path(trainer.default_root_dir)
        if ranks.rank() == 0:
            _require_writable(root)
            if stage == "fit":
                if not trainer.ckpt_path:
                    _move_aside(root, self.older_files)
                path = _free_name(root, "config", ".yaml", first="config.yaml")
                self.parser.save(self.config, path, skip_none=False, overwrite=False, multifile=False)
        self.already_saved = True


def _require_writable(root: Path) -> None:
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as error:
        raise UserError(
            f"--trainer.default_root_dir {root}: cannot be written ({error.strerror}); choose another folder"
        ) from error


def _move_aside(root: Path, older_files: list[Path]) -> None:
    if not older_files:
        return
    folder = _free_name(root, "previous", "", first="previous-1")
    for path in older_files:
        place = folder / path.relative_to(root)
        place.parent.mkdir(parents=True, exist_ok=True)
        path.rename(place)
    log.info("%s held a run already; moved it to %s", root, folder)


def _free_name(root: Path, stem: str, suffix: str, *, first: str) -> Path:
    path, number = root / first, 1
    while path.exists():
        number += 1
        path = root / f"{stem}-{number}{suffix}"
    return path
