"""The command line: LightningCLI with the groups trainer, model, data, rollout, evaluation, samples and export."""

from __future__ import annotations

import inspect
import logging
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint, TQDMProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from grpo_lightning.callbacks.evaluation import EvaluationCallback
from grpo_lightning.callbacks.export import ExportCallback
from grpo_lightning.callbacks.rollout import RolloutCallback
from grpo_lightning.callbacks.run_folder import RunFolderCallback
from grpo_lightning.callbacks.samples import SamplesCallback
from grpo_lightning.cli_parser import OneLineParser
from grpo_lightning.data.datamodule import PromptDataModule
from grpo_lightning.errors import UserError
from grpo_lightning.loggers import MetricsCSV, TensorBoard
from grpo_lightning.policy_module import PolicyModule

log = logging.getLogger(__name__)

NOT_OURS = {
    "gradient_clip_val": "--model.max_grad_norm",
    "gradient_clip_algorithm": "--model.max_grad_norm (always by norm)",
    "overfit_batches": "--data.source to few questions and --data.shuffle false",
    "accumulate_grad_batches": "--rollout.micro_batch_tokens (memory) and --rollout.updates_per_rollout (step size)",
}
"""Trainer flags that do not go with manual optimization or a loader of our own, and what stands in their place."""

NAMED_CHECKPOINT = "last"


class ProgressBar(TQDMProgressBar):
    """Lightning's bar without the logger's version number."""

    def get_metrics(self, trainer: L.Trainer, pl_module: L.LightningModule) -> dict[str, Any]:
        return {k: v for k, v in super().get_metrics(trainer, pl_module).items() if k != "v_num"}


class RunCheckpoint(ModelCheckpoint):
    """After each validation and at the end of each epoch: ``last.ckpt`` is where the run ended, validated or not."""

    def __init__(self) -> None:
        super().__init__(filename="step{step}", auto_insert_metric_name=False, save_last=True)

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        super().on_train_batch_end(trainer, *args)
        # Not at the end of the epoch that this cuts short: a resumed run would take its other prompts for done.
        if trainer.global_step == trainer.max_steps:
            self._save(trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._save(trainer)

    def _save(self, trainer: L.Trainer) -> None:
        if not self._should_skip_saving_checkpoint(trainer):  # as where this step is saved already
            figures = self._monitor_candidates(trainer)
            self._save_topk_checkpoint(trainer, figures)
            self._save_last_checkpoint(trainer, figures)


class GRPOCommandLine(LightningCLI):
    """``python -m grpo_lightning {fit,validate,test,predict} --config ...``"""

    def __init__(self, args: Any = None) -> None:
        super().__init__(
            PolicyModule,
            PromptDataModule,
            subclass_mode_model=True,
            parser_class=OneLineParser,
            save_config_callback=RunFolderCallback,
            seed_everything_default=0,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            trainer_defaults={
                "default_root_dir": "runs/latest",
                "use_distributed_sampler": False,
                "log_every_n_steps": 1,
            },
            args=args,
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_lightning_class_args(RolloutCallback, "rollout")
        parser.add_lightning_class_args(EvaluationCallback, "evaluation")
        parser.add_lightning_class_args(SamplesCallback, "samples")
        parser.add_lightning_class_args(ExportCallback, "export")
        parser.set_defaults(
            {
                "model": {
                    "class_path": "grpo_lightning.GRPOModule",
                    "init_args": {"objective": {"class_path": "grpo_lightning.objectives.ClippedObjective"}},
                }
            }
        )

    def _prepare_subcommand_parser(self, klass: type, subcommand: str, **kwargs: Any) -> LightningArgumentParser:
        parser = super()._prepare_subcommand_parser(klass, subcommand, **kwargs)
        if subcommand == "predict":
            parser.add_argument(
                "--prompt", type=str | None, default=None, help="One question to ask; prints the answer."
            )
        return parser

    def _parse_ckpt_path(self) -> None:
        """Lightning's reads the whole checkpoint here, for hyper-parameters that ours have not: the config decides."""
        _check_checkpoint(self.config[self.config.subcommand].get("ckpt_path"))

    def before_instantiate_classes(self) -> None:
        trainer = self.config[self.subcommand]["trainer"]
        for flag, ours in NOT_OURS.items():
            default = inspect.signature(L.Trainer).parameters[flag].default
            if trainer.get(flag) not in (None, default):
                raise UserError(f"--trainer.{flag} {trainer[flag]}: not used here; set {ours} instead")
        if str(trainer.get("precision")).startswith("16"):
            raise UserError(
                f"--trainer.precision {trainer['precision']}: use bf16-mixed or 32-true; fp16 is not supported"
            )

    def instantiate_trainer(self, **kwargs: Any) -> L.Trainer:
        config = self._get(self.config_init, "trainer")
        if config.get("fast_dev_run"):  # a trial, which must not overwrite a run
            kwargs["default_root_dir"] = tempfile.mkdtemp(prefix="fast_dev_run_")
        kwargs["logger"] = self._loggers(os.path.expanduser(config["default_root_dir"] or "."), config.get("logger"))
        if config.get("max_epochs") is None and config.get("max_steps", -1) == -1:
            kwargs["max_epochs"] = 1  # Lightning's own default is a thousand
        callbacks = config.get("callbacks") or []
        callbacks = list(callbacks) if isinstance(callbacks, list) else [callbacks]
        if config.get("enable_checkpointing") is not False and not _has(callbacks, ModelCheckpoint):
            callbacks.append(RunCheckpoint())
        if config.get("enable_progress_bar") is not False and not _has(callbacks, TQDMProgressBar):
            callbacks.append(ProgressBar())
        if type(config.get("val_check_interval")) is int:
            _look_after_validation(callbacks)
        try:
            return super().instantiate_trainer(**kwargs, callbacks=callbacks)
        except (MisconfigurationException, ValueError) as error:
            raise UserError(f"--trainer: {' '.join(str(error).split())}") from error

    def _loggers(self, root: str, given: Any) -> Any:
        """What is given, and always metrics.csv in the run folder of a ``fit``, whose file it is alone.

        It comes first, so that checkpoints lie in the run folder too.
        """
        if given is False:
            return False
        if given in (None, True):
            given = [TensorBoard(root)] if self.subcommand == "fit" else []
        given = list(given) if isinstance(given, list) else [given]
        return [MetricsCSV(root), *given] if self.subcommand == "fit" else given

    def before_validate(self) -> None:
        if not self.datamodule.eval_sources:  # found here, and not once the weights are loaded
            raise UserError(f"`{self.subcommand}` has nothing to ask; name --data.eval_sources")

    before_test = before_validate

    def before_predict(self) -> None:
        self.datamodule.question = self.config["predict"].get("prompt")
        if self.datamodule.question is None:
            self.before_validate()

    def after_predict(self) -> None:
        if self.datamodule.question is not None:
            evaluation = next(c for c in self.trainer.callbacks if isinstance(c, EvaluationCallback))
            for record in evaluation.predictions:
                print(record["completion"])


def _check_checkpoint(given: str | None) -> None:
    """A file that torch can read, or a sharded checkpoint's folder; nothing of it is loaded."""
    if given in (None, NAMED_CHECKPOINT) or "://" in given:
        return
    path, remedy = Path(given), f"give a checkpoint, or {NAMED_CHECKPOINT!r} for the run folder's newest"
    if not path.exists():
        raise UserError(f"--ckpt_path {given}: no such file; {remedy}")
    if path.is_file() and not zipfile.is_zipfile(path):  # torch.save writes zip archives
        raise UserError(f"--ckpt_path {given}: is no checkpoint, or an incomplete one; {remedy}")


def _look_after_validation(callbacks: list[Any]) -> None:
    """Checkpoints and early stopping act after every validation.

    Lightning takes ``val_check_interval: 1`` (each rollout) for 1.0 (each epoch) and would wait for the epoch's end.
    """
    for callback in callbacks:
        if isinstance(callback, ModelCheckpoint) and callback.monitor and callback._save_on_train_epoch_end is None:
            callback._save_on_train_epoch_end = False
        if isinstance(callback, EarlyStopping) and callback._check_on_train_epoch_end is None:
            callback._check_on_train_epoch_end = False


def _has(callbacks: list[Any], kind: type) -> bool:
    return any(isinstance(callback, kind) for callback in callbacks)
