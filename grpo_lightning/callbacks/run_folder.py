"""The run folder: found writable before work starts, an older run moved aside, the resolved config saved."""

from __future__ import annotations

import json
import logging
import re
import shutil
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.cli import SaveConfigCallback
from lightning.pytorch.loggers import WandbLogger

from grpo_lightning import ranks
from grpo_lightning.callbacks.checkpoint import read_header
from grpo_lightning.callbacks.disk import require_space
from grpo_lightning.callbacks.export import ExportCallback
from grpo_lightning.callbacks.geometry import warn_of_epochs
from grpo_lightning.environment import environment
from grpo_lightning.errors import UserError
from grpo_lightning.loggers import MetricsCSV, TensorBoard
from grpo_lightning.records import read_records, write_records

log = logging.getLogger(__name__)
RUN_FILES = (
    "config*.yaml",
    "environment*.json",
    "report.html",
    "metrics*.csv",
    "evaluations*.jsonl",
    "predictions.jsonl",
    "checkpoints*",
    "broken",
    "hf",
    "adapter",
    "samples*",
    "tensorboard",
)
"""What a run writes, as patterns; beside these the folder that ``ExportCallback`` is told."""
ASIDE = ("metrics-{}.csv", "evaluations-{}.jsonl", "samples-{}", "checkpoints-{}")
"""Where a resumed run puts what lies after its checkpoint."""
SAMPLES = re.compile(r"rollout_(?P<rollout>\d+)\.parquet|.*_step(?P<step>\d+)\.jsonl")


class RunFolderCallback(SaveConfigCallback):
    """Prepares ``--trainer.default_root_dir`` for a run and writes ``config.yaml`` and ``environment.json`` there.

    A new ``fit`` in a folder that holds a run moves that run's files to ``previous-<n>/``: nothing is lost, nothing is
    mixed. A ``fit`` resumed from one of the folder's own checkpoints (``--ckpt_path``) goes on in place and saves its
    config as ``config-<n>.yaml``, beside ``environment-<n>.json``. What the run had written after that checkpoint is
    put aside under a number of its own: the files as they were in ``metrics-<n>.csv`` and ``evaluations-<n>.jsonl``,
    the later samples in ``samples-<n>/`` and checkpoints in ``checkpoints-<n>/``, so that ``last`` is one of this run.
    Weights & Biases goes on with the same run, whose id is in the checkpoint.
    """

    wandb_run: str | None = None

    def state_dict(self) -> dict[str, Any]:
        return {"wandb_run": self.wandb_run}

    def setup(self, trainer: L.Trainer, pl_module: Any, stage: str) -> None:
        self.already_saved = True
        for check in self.checks(trainer, pl_module, stage):
            check()

    def checks(self, trainer: L.Trainer, pl_module: Any, stage: str) -> Iterator[Callable[[], None]]:
        """Whether the run can be written there: each raises ``UserError`` by itself."""
        root = Path(trainer.default_root_dir)
        resumed = goes_on(root, self.config.get("ckpt_path"))
        if ranks.rank() == 0:
            yield partial(_require_writable, root)
            if stage == "fit" and not trainer.fast_dev_run:
                yield partial(require_space, trainer, pl_module, resumed=resumed)
        if stage == "fit" and not resumed:
            yield partial(self._require_inputs_elsewhere, trainer, root)

    def _require_inputs_elsewhere(self, trainer: L.Trainer, root: Path) -> None:
        """What the new run reads by its path later on (model folders) or is to be repeated with must stay in place."""
        older = [path.resolve() for path in held(trainer)]
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
        # The config's, since FSDP strategies load the checkpoint, and the trainer knows of it, only after this.
        if not goes_on(root, self.config.get("ckpt_path")):
            _move_aside(root, held(trainer))
        path = _free_name(root, "config", ".yaml", first="config.yaml")
        self.parser.save(self.config, path, skip_none=False, overwrite=False, multifile=False)
        place = root / path.name.replace("config", "environment").replace(".yaml", ".json")
        place.write_text(json.dumps(environment(world_size=trainer.world_size), indent=2) + "\n", "utf-8")

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if ranks.rank() != 0:
            return
        self.wandb_run = next((str(each.version) for each in trainer.loggers if isinstance(each, WandbLogger)), None)
        root, epochs, batches = Path(trainer.default_root_dir), trainer.max_epochs, trainer.num_training_batches
        warn_of_epochs(trainer.max_steps, max_epochs=epochs, batches=batches, steps=pl_module.steps_per_batch)
        if not goes_on(root, trainer.ckpt_path):
            return
        put_aside(root, step=trainer.global_step, rollouts=trainer.fit_loop.epoch_loop.total_batch_idx + 1)
        for logger in trainer.loggers:
            if isinstance(logger, MetricsCSV | TensorBoard):
                logger.forget_after(trainer.global_step)


def put_aside(root: Path, *, step: int, rollouts: int) -> None:
    """Move what a run wrote after the checkpoint from which it goes on out of the way of what it writes next.

    Args:
        root: the run folder.
        step: optimizer steps behind the checkpoint.
        rollouts: rollouts behind it.
    """
    number = 1
    while any((root / name.format(number)).exists() for name in ASIDE):
        number += 1
    metrics, evaluations, samples, checkpoints = (root / name.format(number) for name in ASIDE)
    table = MetricsCSV(str(root))
    if table.path.exists():
        shutil.copyfile(table.path, metrics)
        if not table.forget_after(step):
            metrics.unlink()
    _forget_evaluations(root / "evaluations.jsonl", evaluations, step=step)
    for path in (root / "samples").glob("*"):
        name = SAMPLES.fullmatch(path.name)
        if name and (int(name["rollout"] or 0) > rollouts or int(name["step"] or 0) > step):
            samples.mkdir(exist_ok=True)
            path.rename(samples / path.name)
    _forget_checkpoints(root / "checkpoints", checkpoints, step=step)


def _forget_checkpoints(folder: Path, spare: Path, *, step: int) -> None:
    for path in folder.glob("*.ckpt"):
        header = None if path.is_symlink() else read_header(path)
        if header is not None and header.step > step:
            spare.mkdir(exist_ok=True)
            path.rename(spare / path.name)
    for path in folder.glob("*.ckpt"):
        if not path.exists():  # the link to one of them
            path.unlink()


def _forget_evaluations(file: Path, spare: Path, *, step: int) -> None:
    if not file.exists():
        return
    lines = [line for line in file.read_bytes().split(b"\n") if line]
    kept = [record for record in read_records(file) if record["step"] <= step]
    if len(kept) < len(lines):  # also if a run that was killed has left half a line
        shutil.copyfile(file, spare)
        write_records(file, kept)


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


def goes_on(root: Path, checkpoint: Any) -> bool:
    """True if the checkpoint is of the run that lies in ``root`` (not of one that was moved aside there)."""
    if not checkpoint:
        return False
    path, root = Path(checkpoint).resolve(), root.resolve()
    return path.is_relative_to(root) and not path.relative_to(root).parts[0].startswith("previous-")


def held(trainer: L.Trainer) -> list[Path]:
    """What an older run has left in the run folder."""
    return _older_files(Path(trainer.default_root_dir), exports(trainer))


def exports(trainer: L.Trainer) -> list[str]:
    """Folders, inside the run folder, that a trained policy goes to."""
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
        try:
            path.rename(folder / path.name)
        except OSError as error:
            raise UserError(
                f"--trainer.default_root_dir {root}: holds {path.name} of an older run, which cannot be moved aside "
                f"({error.strerror}); choose another folder"
            ) from error
    log.info("%s held a run already; moved it to %s", root, folder)


def _free_name(root: Path, stem: str, suffix: str, *, first: str) -> Path:
    path, number = root / first, 1
    while path.exists():
        number += 1
        path = root / f"{stem}-{number}{suffix}"
    return path
