"""The command line: LightningCLI with the groups trainer, model, data, rollout, evaluation, samples, health, export."""

from __future__ import annotations

import inspect
import logging
import os
import tempfile
from pathlib import Path
from typing import Any, TypeVar

import lightning as L
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.callbacks.progress import ProgressBar as AnyProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from grpo_lightning.callbacks.checkpoint import (
    CheckpointHeader,
    RolloutBoundary,
    RunCheckpoint,
    newest_checkpoint,
    read_header,
)
from grpo_lightning.callbacks.evaluation import EvaluationCallback, whose_answers
from grpo_lightning.callbacks.export import ExportCallback
from grpo_lightning.callbacks.folder_lock import FolderLock
from grpo_lightning.callbacks.health import HealthCallback
from grpo_lightning.callbacks.progress_bar import ProgressBar
from grpo_lightning.callbacks.resume import ExactResume
from grpo_lightning.callbacks.rollout import RolloutCallback
from grpo_lightning.callbacks.run_folder import RunFolderCallback, goes_on
from grpo_lightning.callbacks.samples import SamplesCallback
from grpo_lightning.callbacks.stop_signal import StopOnSignal
from grpo_lightning.callbacks.throughput import ThroughputCallback
from grpo_lightning.checkpoint_files import CheckpointFiles
from grpo_lightning.cli_classes import check_learning_rates, keep_no_arguments_of_another_objective, misplaced_nulls
from grpo_lightning.cli_parser import OneLineParser
from grpo_lightning.data.datamodule import PromptDataModule
from grpo_lightning.errors import UserError, in_one_line
from grpo_lightning.files import put_back
from grpo_lightning.loggers import MetricsCSV, TensorBoard, outlived
from grpo_lightning.policy_module import PolicyModule
from grpo_lightning.processes import check_launch, end_soon_after_sigterm, stop_by_sigterm

log = logging.getLogger(__name__)

NOT_OURS = {
    "gradient_clip_val": "--model.max_grad_norm",
    "gradient_clip_algorithm": "--model.max_grad_norm (always by norm)",
    "overfit_batches": "--data.source to few questions and --data.shuffle false",
    "accumulate_grad_batches": "--rollout.micro_batch_tokens (memory) and --rollout.updates_per_rollout (step size)",
}
"""Trainer flags that do not go with manual optimization or a loader of our own, and what stands in their place."""

NAMED_CHECKPOINT = "last"
T = TypeVar("T", bound=L.Callback)


class GRPOCommandLine(LightningCLI):
    """``python -m grpo_lightning {fit,validate,test,predict} --config ...``"""

    _header: CheckpointHeader | None = None

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
                "enable_model_summary": False,  # one row
                "num_sanity_val_steps": 0,  # of a few batches, it would say nothing of the policy
            },
            args=args,
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        keep_no_arguments_of_another_objective()
        parser.add_lightning_class_args(RolloutCallback, "rollout")
        parser.add_lightning_class_args(EvaluationCallback, "evaluation")
        parser.add_lightning_class_args(SamplesCallback, "samples")
        parser.add_lightning_class_args(HealthCallback, "health")
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
        config = self.config[self.config.subcommand]
        if config.get("weights_only", True) is None:
            config["weights_only"] = True  # null would be false for what comes over the network
        self._header = self._checked_checkpoint(config.get("ckpt_path"))

    def before_instantiate_classes(self) -> None:
        for flag in misplaced_nulls(self.config[self.subcommand]):
            raise UserError(f"{flag} null: it needs a value; leave it out for its default")
        check_learning_rates(self.config[self.subcommand]["model"], self.parser._words)
        trainer = self.config[self.subcommand]["trainer"]
        for flag, ours in NOT_OURS.items():
            default = inspect.signature(L.Trainer).parameters[flag].default
            if trainer.get(flag) not in (None, default):
                raise UserError(f"--trainer.{flag} {trainer[flag]}: not used here; set {ours} instead")
        if str(trainer.get("precision")).startswith("16"):
            raise UserError(
                f"--trainer.precision {trainer['precision']}: use bf16-mixed or 32-true; fp16 is not supported"
            )

    @property
    def _root(self) -> str:
        """The run folder as it was asked for."""
        return os.path.expanduser(self._get(self.config_init, "trainer")["default_root_dir"] or ".")

    def instantiate_trainer(self, **kwargs: Any) -> L.Trainer:
        config = self._get(self.config_init, "trainer")
        if config.get("fast_dev_run"):  # a trial, which must not overwrite a run
            kwargs["default_root_dir"] = tempfile.mkdtemp(prefix="fast_dev_run_")
        kwargs["logger"] = self._loggers(self._root, config.get("logger"))
        if config.get("max_epochs") is None and config.get("max_steps", -1) == -1:
            kwargs["max_epochs"] = 1  # Lightning's own default is a thousand
        callbacks = config.get("callbacks") or []
        callbacks = [FolderLock(), ExactResume(), *(callbacks if isinstance(callbacks, list) else [callbacks])]
        if any(isinstance(c, ModelCheckpoint) and c._train_time_interval is not None for c in callbacks):
            raise UserError(
                "--trainer.callbacks ModelCheckpoint(train_time_interval): Lightning looks at it under automatic "
                "optimization only; use every_n_train_steps, or no ModelCheckpoint for one every 50 rollouts"
            )
        if config.get("enable_checkpointing") is not False and not _has(callbacks, ModelCheckpoint):
            callbacks.append(RunCheckpoint())
        if self.subcommand == "fit":
            if config.get("enable_checkpointing") is not False:
                callbacks.append(RolloutBoundary())
            if not _has(callbacks, StopOnSignal):
                callbacks.append(StopOnSignal())
            callbacks.append(ThroughputCallback())
        if config.get("enable_progress_bar") is not False and not _has(callbacks, AnyProgressBar):
            callbacks.append(ProgressBar())
        if type(config.get("val_check_interval")) is int:
            _look_after_validation(callbacks)
        try:
            trainer = super().instantiate_trainer(**kwargs, callbacks=callbacks)
        except (MisconfigurationException, ValueError) as error:
            if config.get("strategy") == "fsdp" and "requires a GPU" in str(error):
                raise UserError("--trainer.strategy fsdp: needs GPUs; use fsdp2, which runs on CPUs too") from error
            if "No supported gpu" in str(error):
                raise UserError(
                    f"--trainer.accelerator {config['accelerator']}: there is no GPU here; try with "
                    "--trainer.accelerator cpu --trainer.devices 2"
                ) from error
            raise UserError(f"--trainer: {in_one_line(error)}") from error
        check_launch(trainer.num_devices, trainer.num_nodes)
        trainer._signal_connector._sigterm_notifier_fn = stop_by_sigterm
        if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:  # what Lightning takes where nothing is given
            trainer.strategy.checkpoint_io = CheckpointFiles()
        if trainer.world_size > 1:
            end_soon_after_sigterm()
        return trainer

    def _loggers(self, root: str, given: Any) -> Any:
        """What is given, and always metrics.csv in the run folder of a ``fit``, whose file it is alone.

        It comes first, so that checkpoints lie in the run folder too.
        """
        if given is False:
            return False
        if given in (None, True):
            given = [TensorBoard(root)] if self.subcommand == "fit" else []
        given = [outlived(logger) for logger in (given if isinstance(given, list) else [given])]
        return [MetricsCSV(root), *given] if self.subcommand == "fit" else given

    # --- around the run ------------------------------------------------------------------------------------------

    def _run_subcommand(self, subcommand: str) -> None:
        self._find_last_checkpoint()
        self._tell_of_checkpoint()
        if subcommand != "fit":
            log.info(whose_answers(self.trainer, self.model, checkpoint=self._get(self.config, "ckpt_path")))
        try:
            super()._run_subcommand(subcommand)
        except MisconfigurationException as error:
            raise UserError(f"--trainer: {in_one_line(error)}") from error
        finally:
            self._callback(FolderLock).release()

    def _find_last_checkpoint(self) -> None:
        """Put the newest file's path in the place of "last", for which Lightning may silently start from scratch."""
        if self._get(self.config, "ckpt_path") != NAMED_CHECKPOINT:
            return
        folders = [Path(self._root) / "checkpoints"]
        for callback in self.trainer.checkpoint_callbacks:
            if isinstance(callback, ModelCheckpoint) and callback.dirpath is not None:
                folders.append(Path(callback.dirpath))
        weights_only = self._get(self.config, "weights_only")
        found = newest_checkpoint(folders, resumable=self.subcommand == "fit", weights_only=weights_only)
        if found is None:
            incomplete = any(path.exists() for folder in folders for path in folder.glob("*.ckpt"))
            raise UserError(
                f"--ckpt_path {NAMED_CHECKPOINT}: there is no {'complete ' if incomplete else ''}checkpoint in "
                f"{folders[0]}; name a file, or leave --ckpt_path out to begin with --model.policy"
            )
        newest = str(found)
        self._header = self._checked_checkpoint(newest)
        for config in (self.config, self.config_init):
            config[self.subcommand]["ckpt_path"] = newest

    def _checked_checkpoint(self, given: str | None) -> CheckpointHeader | None:
        """What a file or a sharded checkpoint's folder says of itself; None if there is none, or none within reach."""
        if given in (None, NAMED_CHECKPOINT) or "://" in given:
            return None
        path, remedy = Path(given), f"give a checkpoint, or {NAMED_CHECKPOINT!r} for the run folder's newest"
        put_back(path.parent)
        if given == "best" and not path.exists():
            raise UserError(f"--ckpt_path {given}: only the run that is going on knows which that is; {remedy}")
        if not path.exists():
            raise UserError(f"--ckpt_path {given}: no such file; {remedy}")
        config = self.config[self.config.subcommand]
        header = read_header(path, weights_only=config.get("weights_only") is not False)
        if header is None:
            raise UserError(f"--ckpt_path {given}: is no checkpoint, or an incomplete one; {remedy}")
        if self.config.subcommand == "fit" and not header.resumable:
            raise UserError(
                f"--ckpt_path {given}: holds weights alone, and a run cannot go on without the optimizer's state; name "
                "a checkpoint that was saved without save_weights_only"
            )
        return header

    def _callback(self, kind: type[T]) -> T:
        return next(callback for callback in self.trainer.callbacks if isinstance(callback, kind))

    def _tell_of_checkpoint(self) -> None:
        """Tell those who act before Lightning has loaded it: under some strategies that is late."""
        given, rollout = self._get(self.config, "ckpt_path"), self._callback(RolloutCallback)
        if self._header is None:
            rollout.resumes = given is not None
            return
        sharded = isinstance(self.trainer.strategy, ModelParallelStrategy | FSDPStrategy)
        if Path(given).is_dir() and not sharded:
            raise UserError(
                f"--ckpt_path {given}: is a folder of shards; go on with the --trainer.strategy that wrote it, fsdp2 "
                "or fsdp, on any number of ranks"
            )
        rollout.loaded_step = self._header.step
        run = self._header.callbacks.get("RunFolderCallback", {}).get("wandb_run")
        for logger in self.trainer.loggers if run and goes_on(Path(self._root), given) else []:
            if isinstance(logger, WandbLogger) and logger.version is None:
                logger._id = logger._wandb_init["id"] = run

    def before_validate(self) -> None:
        if not self.datamodule.eval_sources:  # found here, and not once the weights are loaded
            raise UserError(f"`{self.subcommand}` has nothing to ask; name --data.eval_sources")

    before_test = before_validate

    def before_predict(self) -> None:
        self.datamodule.question = self.config["predict"].get("prompt")
        if self.datamodule.question is None:
            self.before_validate()

    def after_predict(self) -> None:
        """The answer to ``--prompt``: the greedy one alone if there is one, else all samples, numbered."""
        if self.datamodule.question is None or not self.trainer.is_global_zero:
            return
        records = self._callback(EvaluationCallback).predictions
        greedy = [record["completion"] for record in records if record["greedy"]]
        samples = [record["completion"] for record in records]
        if greedy or len(samples) == 1:
            print((greedy or samples)[0])
        else:
            print("\n\n".join(f"[{i} of {len(samples)}]\n{text}" for i, text in enumerate(samples, start=1)))


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
