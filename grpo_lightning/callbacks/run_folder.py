"""The run folder: found writable before work starts, an older run moved aside, the resolved config saved."""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.cli import SaveConfigCallback

from grpo_lightning import ranks
from grpo_lightning.callbacks.export import ExportCallback
from grpo_lightning.errors import UserError
from grpo_lightning.loggers import MetricsCSV

log = logging.getLogger(__name__)
RUN_FILES = (
    "config*.yaml",
    "metrics*.csv",
    "evaluations.jsonl",
    "predictions.jsonl",
    "checkpoints",
    "hf",
    "adapter",
    "samples",
    "tensorboard",
)
"""What a run writes, as patterns; beside these the folder that ``ExportCallback`` is told."""


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
        root = Path(trainer.default_root_dir)
        if stage == "fit" and not _goes_on(root, self.config.get("ckpt_path")):
            self._require_inputs_elsewhere(trainer, root)

    def _require_inputs_elsewhere(self, trainer: L.Trainer, root: Path) -> None:
        """What the new run reads by its path later on (model folders) or is to be repeated with must stay in place."""
        older = [path.resolve() for path in _older_files(root, _exports(trainer))]
        for group in ("model", "data"):
            for flag, text in _texts(self.config.get(group), f"--{group}"):
                if any(Path(text).expanduser().resolve().is_relative_to(path) for path in older):
                    raise UserError(
                        f"{flag} {text}: lies in --trainer.default_root_dir {root}, whose older run would be moved "
                        "aside; choose another --trainer.default_root_dir"
                    )

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        # Not in ``setup``: by now every check has passed and the model has been loaded.
        if ranks.rank() != 0:
            return
        root = Path(trainer.default_root_dir)
        root.mkdir(parents=True, exist_ok=True)
        if not _goes_on(root, trainer.ckpt_path):
            _move_aside(root, _older_files(root, _exports(trainer)))
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


def _exports(trainer: L.Trainer) -> list[str]:
    return [c.folder for c in trainer.callbacks if isinstance(c, ExportCallback) and c.folder]


def _older_files(root: Path, exports: list[str]) -> list[Path]:
    """What an older run has left in ``root``."""
    older = [path for pattern in RUN_FILES for path in root.glob(pattern)]
    for path in (root / export for export in exports):
        if path.exists() and path not in older and root.resolve() in path.resolve().parents:
            older.append(path)
    return older


def _texts(value: Any, flag: str) -> Iterator[tuple[str, str]]:
    """Every text in a part of the configuration, with the flag that gives it."""
    if isinstance(value, Namespace | dict):
        for key, inner in vars(value).items() if isinstance(value, Namespace) else value.items():
            yield from _texts(inner, flag if key == "init_args" else f"{flag}.{key}")
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _texts(inner, f"{flag}.{i}")
    elif isinstance(value, str):
        yield flag, value


def _move_aside(root: Path, older: list[Path]) -> None:
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
