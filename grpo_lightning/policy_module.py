"""What every module that trains a policy shares: the model, the optimizer step, the logging."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import lightning as L
import torch
from lightning.pytorch.cli import OptimizerCallable
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn

from grpo_lightning.broken_steps import BrokenSteps
from grpo_lightning.data.batches import require_validation_within
from grpo_lightning.errors import UserError
from grpo_lightning.loggers import StepFigures
from grpo_lightning.models.adapters import LoRA
from grpo_lightning.models.clipping import clip_grad_norm
from grpo_lightning.models.loading import (
    DType,
    eos_token_ids,
    load_config,
    load_policy,
    load_tokenizer,
    warn_of_bfloat16_weights,
)
from grpo_lightning.models.optimizers import SCHEDULES, ParameterGroup, make_optimizer, make_scheduler
from grpo_lightning.models.origin import OF_REFERENCE, attach_adapter, require_same_origin, require_same_tensors
from grpo_lightning.models.policy import Policy
from grpo_lightning.strategies import distributed
from grpo_lightning.types import Layout, PromptBatch, Window

FSDP1_PREFIX = "_fsdp_wrapped_module."  # in the names of FSDP1's parameters, but not in those of its state dicts


class PolicyModule(L.LightningModule):
    """A language model under manual optimization.

    One batch of the loader may take several optimizer steps (windows, passes), each of several micro-batches, so that
    everything Lightning does between batches (evaluation, checkpoints, resume) falls on a rollout's boundary.

    Args:
        policy: Hugging Face id or folder of the causal language model to train.
        adapter: train a low-rank adapter instead of the whole model (``grpo_lightning.models.LoRA``).
        lr: learning rate, whatever the optimizer; null takes the one set in ``optimizer``, or 1e-6 if none is.
        optimizer: by ``class_path`` (default ``torch.optim.AdamW``, weight decay 0).
        lr_scheduler_type: a schedule of ``transformers.get_scheduler``: constant, linear, cosine, ...
        lr_scheduler_kwargs: its further arguments, such as ``{"min_lr_rate": 0.1}`` of cosine_with_min_lr.
        warmup_ratio: share of all optimizer steps in which the learning rate rises from 0.
        max_grad_norm: gradients are scaled down to this norm; null leaves them alone.
        dtype: of the weights. Keep float32 and set ``--trainer.precision bf16-mixed`` for bfloat16 arithmetic.
        attn_implementation: ``sdpa``, ``eager``, ``flash_attention_2``, ...
        packing: compute sequences one behind the other instead of padded, and a group's prompt once, where the model
            can (``models.packing``).
        gradient_checkpointing: compute activations twice instead of keeping them.
        trust_remote_code: run code that comes with a model. Off: read it first.
    """

    learns_from_rollouts = False
    needs_reference = False

    def __init__(
        self,
        policy: str,
        *,
        adapter: LoRA | None = None,
        lr: float | None = None,
        optimizer: OptimizerCallable | None = None,
        lr_scheduler_type: str = "constant",
        lr_scheduler_kwargs: dict[str, Any] | None = None,
        warmup_ratio: float = 0.0,
        max_grad_norm: float | None = 1.0,
        dtype: DType = "float32",
        attn_implementation: str = "sdpa",
        packing: bool = True,
        gradient_checkpointing: bool = False,
        trust_remote_code: bool = False,
    ) -> None:
        super().__init__()
        if lr is not None and not 0 <= lr < math.inf:
            raise UserError(f"--model.lr {lr}: the learning rate must be a finite number and not negative")
        if not 0 <= warmup_ratio < 1:
            raise UserError(f"--model.warmup_ratio {warmup_ratio}: a share of all steps, at least 0 and below 1")
        if max_grad_norm is not None and max_grad_norm <= 0:
            raise UserError(f"--model.max_grad_norm {max_grad_norm}: must be positive; null turns clipping off")
        if lr_scheduler_type not in SCHEDULES:
            raise UserError(
                f"--model.lr_scheduler_type {lr_scheduler_type}: choose from {', '.join(sorted(SCHEDULES))}"
            )
        self.automatic_optimization = False
        self.strict_loading = False  # checkpoints hold what training changes; ``check_checkpoint`` sees to the rest
        self.policy_path = policy
        self.adapter = adapter
        self.lr, self.optimizer_factory = lr, optimizer
        self.lr_scheduler_type, self.warmup_ratio = lr_scheduler_type, warmup_ratio
        self.lr_scheduler_kwargs = lr_scheduler_kwargs
        self.max_grad_norm = max_grad_norm
        self.dtype_name: DType = dtype
        self.attn_implementation, self.packing = attn_implementation, packing
        self.gradient_checkpointing = gradient_checkpointing
        self.trust_remote_code = trust_remote_code

        self.model_config = load_config(policy, flag="--model.policy", trust_remote_code=trust_remote_code)
        self.tokenizer = load_tokenizer(policy, flag="--model.policy", trust_remote_code=trust_remote_code)
        self.eos_token_ids = eos_token_ids(policy, self.tokenizer)
        self.policy: nn.Module | None = None  # a ``Policy``, or its FSDP wrapper
        self.layout: Layout = "padded"  # the policy's own, once it is there
        self.steps_per_batch = 1
        """Optimizer steps that one batch of the loader takes; set by whoever attaches windows to batches."""
        self.weights_version = 0
        """Grows with every change of the weights, so that the sampler knows when it is behind."""
        self.origin: dict[str, Any] = {}  # see ``models.origin``
        self.reference_moves = False  # with it moves what checkpoints hold; see ``callbacks.ReferenceSync``
        self.broken = BrokenSteps()
        self._configured_groups: list[dict[str, Any]] = []
        self._step_figures = StepFigures()

    # --- model ---------------------------------------------------------------------------------------------------

    def configure_model(self) -> None:
        if self.trainer.precision == "bf16-true":
            warn_of_bfloat16_weights("--trainer.precision bf16-true")
        elif self.dtype_name == "bfloat16" and self.adapter is None:
            warn_of_bfloat16_weights("--model.dtype bfloat16")
        if self.policy is None:
            policy = self.build_policy(self.policy_path).train()
            if self.adapter is not None:
                self.origin |= attach_adapter(policy, self.adapter, with_reference=self.needs_reference)
            self.layout = policy.layout
            self.policy = distributed(policy, self.trainer.strategy)

    def build_policy(self, path: str, *, flag: str = "--model.policy", trained: bool = True) -> Policy:
        """A policy with this module's settings from another folder or id."""
        return load_policy(
            path,
            config=load_config(path, flag=flag, trust_remote_code=self.trust_remote_code),
            flag=flag,
            dtype=self.dtype_name,
            attn_implementation=self.attn_implementation,
            packing=self.packing,
            gradient_checkpointing=self.gradient_checkpointing and trained,
            trust_remote_code=self.trust_remote_code,
            device=self.trainer.strategy.root_device,
        )

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Batches hold prompts, not tensors: whoever attaches tensors puts them on the device."""
        del device, dataloader_idx
        return batch

    def validation_step(self, batch: PromptBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Nothing: ``EvaluationCallback`` generates and scores."""

    test_step = predict_step = validation_step

    # --- optimizer -----------------------------------------------------------------------------------------------

    def parameter_groups(self) -> list[ParameterGroup]:
        """What is trained, by one optimizer (a second one would count every step twice)."""
        assert self.policy is not None
        return [ParameterGroup(self.policy)]

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = make_optimizer(self.parameter_groups(), self.optimizer_factory, lr=self.lr)
        self._configured_groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
        scheduler = make_scheduler(
            optimizer,
            self.lr_scheduler_type,
            total_steps=self.total_steps(),
            warmup_ratio=self.warmup_ratio,
            options=self.lr_scheduler_kwargs,
        )
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def total_steps(self) -> int:
        """Optimizer steps of the whole run. (Lightning's own estimate counts batches under manual optimization.)"""
        trainer = self.trainer
        limit = trainer.max_steps if trainer.max_steps >= 0 else None
        batches = self._batches_per_epoch()
        if trainer.max_epochs in (None, -1):
            if limit is None:
                raise UserError("--trainer.max_steps or --trainer.max_epochs: set one, or the run would never end")
            return limit
        steps = batches * trainer.max_epochs * self.steps_per_batch
        return steps if limit is None else min(limit, steps)

    def _batches_per_epoch(self) -> int:
        """As Lightning counts them, which also checks the intervals that are counted in batches."""
        loop = self.trainer.fit_loop
        try:
            loop.setup_data()
        except ValueError:
            require_validation_within(loop.max_batches, every=self.trainer.val_check_interval)  # in our words
            raise
        # To be set up again: only then does the loader get its position from a checkpoint, which is restored later.
        loop._combined_loader = None
        batches = self.trainer.num_training_batches
        return 0 if math.isinf(batches) else int(batches)  # infinite until there is a loader: none if none is wanted

    def on_train_start(self) -> None:
        """The config wins over what a checkpoint restored: learning rate, betas, weight decay, schedule."""
        optimizer, scheduler = self.optimizers().optimizer, self.lr_schedulers()
        for i, (group, configured) in enumerate(zip(optimizer.param_groups, self._configured_groups, strict=True)):
            group.update(configured, initial_lr=configured["lr"])
            scheduler.base_lrs[i] = configured["lr"]
            group["lr"] = configured["lr"] * scheduler.lr_lambdas[i](scheduler.last_epoch)

    def accumulate(self, loss: Tensor, *, last: bool) -> None:
        """Backward of one micro-batch; under DDP ranks exchange gradients only at an optimizer step's ``last`` one.

        Under FSDP they do each time: to wait, every rank would have to hold the gradients of the whole model.
        """
        strategy = self.trainer.strategy
        waits = not last and hasattr(strategy, "block_backward_sync")
        with strategy.block_backward_sync() if waits else nullcontext():
            self.manual_backward(loss)

    def take_step(self, window: Window[Any], *, loss: float) -> dict[str, float]:
        """Clip, step, advance the schedule.

        A step whose gradient is nothing but zeros (every advantage 0, everything masked), or whose loss or gradient has
        a NaN or inf in it (``BrokenSteps``), must not move a weight, not even by the optimizer's momentum: it is taken
        without gradients, which every torch optimizer passes over, and counts.

        Args:
            window: what this rank has trained on.
            loss: of the step, over all ranks.

        Returns:
            Each group's norm before clipping and rate, ``skipped_steps``, 1 if nothing moved, and ``broken_steps``, the
            number in the run that were not finite.
        """
        optimizer, scheduler, groups = self.optimizers(), self.lr_schedulers(), self.parameter_groups()
        pairs = zip(groups, optimizer.param_groups, strict=False)  # a user's optimizer may have groups of its own
        rates = {f"{group.prefix}learning_rate": settings["lr"] for group, settings in pairs}
        bound = self.max_grad_norm
        norms = {f"{g.prefix}grad_norm": clip_grad_norm(g.module, bound) for g in groups}
        finite = all(map(math.isfinite, [loss, *norms.values()]))
        moves = finite and any(norms.values())
        if not moves:
            optimizer.zero_grad(set_to_none=True)
        if moves:
            self.broken.over()
        if not finite:
            self.broken.add(window, step=self.global_step + 1, loss=loss, figures=norms | rates, trainer=self.trainer)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        scheduler.step()
        self.weights_version += moves
        return norms | rates | {"skipped_steps": float(not moves), "broken_steps": float(self.broken.count)}

    def log_figures(self, figures: dict[str, float], *, bar: Iterable[str] = ()) -> None:
        """Figures for every logger at the current optimizer step, and callbacks and the progress bar told."""
        for logger in self.loggers:
            logger.log_metrics(figures, step=self.global_step)
        self._tell(figures, bar)

    def log_step(self, figures: dict[str, float], *, bar: Iterable[str] = ()) -> None:
        """Figures of one optimizer step, which other loggers than metrics.csv show as means over several.

        Callbacks that have ``on_step_figures(trainer, pl_module, figures)`` are given them, and may add their own.
        """
        for callback in (c for c in self.trainer.callbacks if hasattr(c, "on_step_figures")):
            callback.on_step_figures(self.trainer, self, figures)
        self._step_figures.log(figures, self.loggers, step=self.global_step, every=self.trainer.log_every_n_steps)
        # ``self.log`` does so much for each of some fifty figures that all else of a step's glue takes less time.
        self.trainer.callback_metrics.update({name: torch.tensor(float(value)) for name, value in figures.items()})
        self._tell({name: figures[name] for name in bar if name in figures}, bar)

    def on_train_end(self) -> None:
        self._step_figures.flush(self.loggers, step=self.global_step)

    def _tell(self, figures: dict[str, float], bar: Iterable[str]) -> None:
        shown = set(bar)
        for name, value in figures.items():
            self.log(name, float(value), logger=False, prog_bar=name in shown, batch_size=1)

    # --- checkpoints ---------------------------------------------------------------------------------------------

    def trained_state_dict(self) -> dict[str, Tensor]:
        """What training changes, and so what checkpoints hold; see ``_trained``."""
        return self._trained(self.state_dict())

    def _trained(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """``state`` without a reference at rest, what an adapter leaves frozen, and second names of tied tensors."""
        assert self.policy is not None
        parameters = self.named_parameters(remove_duplicate=False)
        frozen = {name.replace(FSDP1_PREFIX, "") for name, p in parameters if not p.requires_grad}
        tied = {f"{owner}model.{name}" for name in self.policy.tied for owner in ("policy.", OF_REFERENCE)}
        changes = {n for n in state if (self.reference_moves if n.startswith(OF_REFERENCE) else n not in frozen)}
        return {name: tensor for name, tensor in state.items() if name in changes - tied}

    def check_checkpoint(self, shapes: dict[str, torch.Size]) -> None:
        """Refuse a checkpoint of another model.

        Args:
            shapes: of its tensors, by name.
        """
        if self.trainer.state.fn != TrainerFn.FITTING or not self.needs_reference:  # whatever became of its reference
            shapes = {name: shape for name, shape in shapes.items() if not name.startswith(OF_REFERENCE)}
        own = {name: tensor.shape for name, tensor in self.trained_state_dict().items()}
        model = f"--model.policy {self.policy_path} {'with' if self.adapter else 'without'} --model.adapter"
        require_same_tensors(shapes, own, model=model)

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True, assign: bool = False) -> Any:
        self.check_checkpoint({name: tensor.shape for name, tensor in state_dict.items()})
        result = super().load_state_dict(state_dict, strict=False, assign=assign)
        self.weights_version += 1
        return result

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["state_dict"] = self._trained(checkpoint["state_dict"])
        checkpoint["origin"], checkpoint["broken_steps"] = self.origin, self.broken.count

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        require_same_origin(checkpoint.get("origin", {}), self.origin)
        self.broken.count = checkpoint.get("broken_steps", 0)
