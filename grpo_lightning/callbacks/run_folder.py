"""The run folder: found writable before work starts, an older run moved aside, the resolved config saved."""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.cli import SaveConfigCallback

from grpo_lightning import ranks
from grpo_lightning.errors import UserError
from grpo_lightning.loggers import MetricsCSV

log = logging.getLogger(__name__)
RUN_FILES = ("config*.yaml", "metrics*.csv", "evaluations.jsonl", "checkpoints", "hf", "samples", "tensorboard")


class RunFolderCallback(SaveConfigCallback):
    """Prepares ``--trainer.default_root_dir`` for a run and writes ``config.yaml`` there.

    A new ``fit`` in a folder that holds a run moves that run's files to ``previous-<n>/``: nothing is lost, nothing is
    mixed. A ``fit`` resumed from one of the folder's own checkpoints (``--ckpt_path``) goes on in place and saves its
    config as ``config-<n>.yaml``; rows that the run had logged after that checkpoint are kept in ``metrics-<n>.csv``.
    """

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if ranks.rank() == 0:
            _require_writable(Path(trainer.default_root_dir))
        self.already_saved = True

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # Not in ``setup``: by now every check has passed and the model has been loaded.
        if ranks.rank() != 0:
            return
        root = Path(trainer.default_root_dir)
        root.mkdir(parents=True, exist_ok=True)
        if not _goes_on(root, trainer.ckpt_path):
            _move_aside(root)
        path = _free_name(root, "config", ".yaml", first="config.yaml")
        self.parser.save(self.config, path, skip_none=False, overwrite=False, multifile=False)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        root = Path(trainer.default_root_dir)
        if ranks.rank() != 0 or not _goes_on(root, trainer.ckpt_path):
            return
        spare = _free_name(root, "metrics", ".csv", first="metrics-1.csv")
        for logger in trainer.loggers:
            if isinstance(logger, MetricsCSV) and logger.path.exists():
                shutil.copyfile(logger.path, spare)
                if not logger.forget_after(trainer.global_step):
                    spare.unlink()
        evaluations = root / "evaluations.jsonl"
        if evaluations.exists():
            lines = evaluations.read_text("utf-8").splitlines(keepends=True)
            kept = [line for line in lines if json.loads(line)["step"] <= trainer.global_step]
            evaluations.write_text("".join(kept), "utf-8")


def _require_writable(root: Path) -> None:
    """Try it in the nearest folder that exists, so that a start that is refused for another reason makes none."""
    folder = root
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(
            f"--trainer.default_root_dir {root}: cannot be written ({error.strerror}); choose another folder"
        ) from error


def _goes_on(root: Path, checkpoint: Any) -> bool:
    """True if the checkpoint is of the run that lies in ``root`` (not of one that was moved aside there)."""
    if not checkpoint:
        return False
    path, root = Path(checkpoint).resolve(), root.resolve()
    return path.is_relative_to(root) and not path.relative_to(root).parts[0].startswith("previous-")


def _move_aside(root: Path) -> None:
    older = [path for pattern in RUN_FILES for path in root.glob(pattern)]
    if not older:
        return
    folder = _free_name(root, "previous", "", first="previous-1")
    folder.mkdir()
    for path in older:
        path.rename(folder / path.name)
    log.info("%s held a run already; moved it to %s", root, folder)


def _free_name(root: Path, stem: str, suffix: str, *, first: str) -> Path:
    path, number = root / first, 1
    while path.exists():
        number += 1
        path = root / f"{stem}-{number}{suffix}"
    return path
