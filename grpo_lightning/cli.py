"""The command line: LightningCLI with the groups trainer, model, data, rollout, evaluation, samples and export."""

from __future__ import annotations

import logging
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint, TQDMProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import TensorBoardLogger

from grpo_lightning.callbacks.evaluation import EvaluationCallback
from grpo_lightning.callbacks.export import ExportCallback
from grpo_lightning.callbacks.rollout import RolloutCallback
from grpo_lightning.callbacks.run_folder import RunFolderCallback
from grpo_lightning.callbacks.samples import SamplesCallback
from grpo_lightning.cli_parser import OneLineParser
from grpo_lightning.data.datamodule import PromptDataModule
from grpo_lightning.errors import UserError
from grpo_lightning.loggers import MetricsCSV
from grpo_lightning.policy_module import PolicyModule

log = logging.getLogger(__name__)

NOT_OURS = {
    "gradient_clip_val": "--model.max_grad_norm",
    "gradient_clip_algorithm": "--model.max_grad_norm (always by norm)",
    "accumulate_grad_batches": "--rollout.micro_batch_tokens (memory) and --rollout.updates_per_rollout (step size)",
}
"""Trainer flags that Lightning refuses under manual optimization, and what stands in their place."""


class ProgressBar(TQDMProgressBar):
    """Lightning's bar without the logger's version number."""

    def get_metrics(self, trainer: L.Trainer, pl_module: L.LightningModule) -> dict[str, Any]:
        return {k: v for k, v in super().get_metrics(trainer, pl_module).items() if k != "v_num"}


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
            parser.add_argument("--prompt", type=str | None, default=None, help="One question to ask; prints the answer.")
        return parser

    def before_instantiate_classes(self) -> None:
        trainer = self.config[self.subcommand]["trainer"]
        for flag, ours in NOT_OURS.items():
            if trainer.get(flag) not in (None, 1) or (flag.startswith("gradient") and trainer[flag] is not None):
                raise UserError(f"--trainer.{flag} {trainer[flag]}: not used here; set {ours} instead")
        if str(trainer.get("precision")).startswith("16"):
            raise UserError(f"--trainer.precision {trainer['precision']}: use bf16-mixed or 32-true; fp16 is not supported")

    def instantiate_trainer(self, **kwargs: Any) -> L.Trainer:
        config = self._get(self.config_init, "trainer")
        root, loggers = config["default_root_dir"], config.get("logger")
        if loggers in (None, True):
            kwargs["logger"] = [MetricsCSV(root), TensorBoardLogger(root, name="", version="tensorboard")]
        elif loggers is not False:
            # metrics.csv is part of every run folder, whatever else it is logged to; it comes first, so that
            # checkpoints lie in the run folder too.
            kwargs["logger"] = [MetricsCSV(root), *(loggers if isinstance(loggers, list) else [loggers])]
        if config.get("max_epochs") is None and config.get("max_steps", -1) == -1:
            kwargs["max_epochs"] = 1  # Lightning's own default is a thousand
        callbacks = config.get("callbacks") or []
        callbacks = list(callbacks) if isinstance(callbacks, list) else [callbacks]
        if config.get("enable_checkpointing") is not False and not _has(callbacks, ModelCheckpoint):
            callbacks.append(ModelCheckpoint(filename="step{step}", auto_insert_metric_name=False, save_last=True))
        if config.get("enable_progress_bar") is not False and not _has(callbacks, TQDMProgressBar):
            callbacks.append(ProgressBar())
        return super().instantiate_trainer(**kwargs, callbacks=callbacks)

    def before_predict(self) -> None:
        self.datamodule.question = self.config["predict"].get("prompt")

    def after_predict(self) -> None:
        if self.datamodule.question is not None:
            evaluation = next(c for c in self.trainer.callbacks if isinstance(c, EvaluationCallback))
            for record in evaluation.predictions:
                print(record["completion"])


def _has(callbacks: list[Any], kind: type) -> bool:
    return any(isinstance(callback, kind) for callback in callbacks)
