"""How a policy lies on several ranks: ``ddp`` is Lightning's, ``fsdp2`` is ours, ``fsdp`` is Lightning's FSDP1."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from lightning.pytorch.plugins.precision import MixedPrecision, Precision
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy, Strategy, StrategyRegistry
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.fsdp import MixedPrecision as MixedPrecisionFSDP1
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, wrap
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from grpo_lightning import ranks
from grpo_lightning.checkpoint_files import CheckpointFiles
from grpo_lightning.errors import UserError
from grpo_lightning.files import discard, draft_of, on_disk, take_place
from grpo_lightning.models.adapters import lora_layers, whole
from grpo_lightning.models.critic import Critic, PolicyWithValues
from grpo_lightning.models.optimizers import fits, forget_moments
from grpo_lightning.models.policy import Policy
from grpo_lightning.models.sharding import decoder_layers, shard

METADATA = "meta.pt"


class FSDP2Precision(MixedPrecision):
    """bf16-mixed without autocast: the sharded layers have a mixed-precision policy of their own."""

    def forward_context(self) -> AbstractContextManager:
        return nullcontext()


class FSDP2Strategy(ModelParallelStrategy):
    """Fully sharded data parallelism by torch's ``fully_shard``, over all ranks of all hosts; on GPUs and CPUs.

    Args:
        save_distributed_checkpoint: False gathers a checkpoint into one file, which every strategy can load. True lets
            every rank write its own shard into a folder: faster and without the memory, but for FSDP2 alone.
        kwargs: of Lightning's ``ModelParallelStrategy``: process_group_backend, timeout.
    """

    def __init__(self, *, save_distributed_checkpoint: bool = False, **kwargs: Any) -> None:
        super().__init__(
            data_parallel_size=1,
            tensor_parallel_size=1,
            save_distributed_checkpoint=save_distributed_checkpoint,
            **kwargs,
        )

    @property
    def precision_plugin(self) -> Precision:
        return super().precision_plugin

    @precision_plugin.setter
    def precision_plugin(self, plugin: Precision | None) -> None:
        if isinstance(plugin, MixedPrecision):
            plugin = FSDP2Precision(plugin.precision, plugin.device)  # type: ignore[arg-type]
        self._precision_plugin = plugin

    def setup_environment(self) -> None:
        # Lightning's default is tensor parallelism within a host; its number of ranks is known here.
        self._data_parallel_size = self.num_nodes * self.num_processes
        super().setup_environment()

    def sharded(self, policy: Policy) -> Policy:
        """``policy``, in place."""
        mesh = self.device_mesh["data_parallel"]
        return shard(policy, mesh, bfloat16=isinstance(self.precision_plugin, FSDP2Precision))

    # --- checkpoints: Lightning's demand every tensor of the module and mistake adapters' optimizer states ----------

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """What training changes: full tensors on rank 0 and nothing elsewhere, or every rank's shards."""
        assert self.lightning_module is not None
        state = self.lightning_module.trained_state_dict()
        return state if self._save_distributed_checkpoint else self._gathered(state)

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        optimizer = getattr(optimizer, "_optimizer", optimizer)
        if self._save_distributed_checkpoint:
            fresh = not optimizer.state
            state = get_optimizer_state_dict(self.model, optimizer)
            if fresh:  # torch has taken a step to fill it, which would count in AdamW's bias correction
                optimizer.state.clear()
                state["state"] = {}
            return state
        return self._gathered(optimizer.state_dict())

    def _gathered(self, state: Any) -> Any:
        """``state`` with full tensors on the CPU, on rank 0; a collective, so every rank must walk it."""
        if isinstance(state, Mapping):
            return {key: self._gathered(value) for key, value in state.items()}
        if isinstance(state, list | tuple):
            return [self._gathered(value) for value in state]
        if not isinstance(state, Tensor):
            return state
        full = whole(state.detach())
        return full.cpu() if self.global_rank == 0 else full.new_empty(0)

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        path = self.broadcast(filepath)
        if self._save_distributed_checkpoint:
            self._save_shards(checkpoint, Path(path))
        elif self.is_global_zero:
            self.checkpoint_io.save_checkpoint(checkpoint, path)

    def _save_shards(self, checkpoint: dict[str, Any], path: Path) -> None:
        """Every rank's into a draft of the folder, which the first rank renames once all are on disk.

        What the disk refuses on one rank is known to all (torch's own exchange, and one more for the rest).
        """
        draft = draft_of(path)
        refused: BaseException | None = None
        if self.is_global_zero:
            try:
                discard(draft)
                draft.mkdir(parents=True)
            except OSError as error:
                refused = error
        failed = ranks.any_rank(refused is not None)
        if not failed:
            try:
                super().save_checkpoint(checkpoint, draft)
            except (OSError, RuntimeError, dcp.CheckpointException) as error:
                refused = error
            failed = ranks.any_rank(refused is not None)
        if self.is_global_zero and not failed:
            try:
                on_disk(draft / METADATA)
                on_disk(draft)
                take_place(draft, path)
            except OSError as error:
                refused, failed = error, True
        files = self.checkpoint_io
        if self.is_global_zero and isinstance(files, CheckpointFiles):
            if failed:
                shutil.rmtree(draft, ignore_errors=True)
                files.failed(path, refused or OSError("another rank could not write its part"))
            else:
                files.succeeded(path)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        path = Path(self.broadcast(checkpoint_path))
        module: Any = self.lightning_module
        if path.is_dir():
            checkpoint = torch.load(path / METADATA, map_location="cpu", weights_only=weights_only)
            self._load_shards(path, module)
        else:
            checkpoint = torch.load(path, mmap=True, map_location="cpu", weights_only=weights_only)
            if self.optimizers:
                forget_moments(checkpoint, module.optimizer_factory, device=self.root_device)
            self._load_full(checkpoint, module)
        module.weights_version += 1
        return checkpoint

    @torch.no_grad()
    def _load_full(self, checkpoint: dict[str, Any], module: Any) -> None:
        saved = checkpoint["state_dict"]
        module.check_checkpoint({name: tensor.shape for name, tensor in saved.items()})
        for name, own in module.trained_state_dict().items():
            own.copy_(_distributed_like(saved[name], own))
        for optimizer, state in zip(self.optimizers, checkpoint.get("optimizer_states", []), strict=False):
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            for number, moments in state["state"].items():
                own = parameters[int(number)]
                for key, value in moments.items():
                    if isinstance(value, Tensor) and value.shape == own.shape:
                        moments[key] = _distributed_like(value, own)
            optimizer.load_state_dict(state)

    def _load_shards(self, path: Path, module: Any) -> None:
        saved = dcp.FileSystemReader(path).read_metadata().state_dict_metadata
        prefix = "state_dict."
        module.check_checkpoint({k.removeprefix(prefix): v.size for k, v in saved.items() if k.startswith(prefix)})
        dcp.load({"state_dict": module.trained_state_dict()}, checkpoint_id=path)  # in place
        for number, optimizer in enumerate(self.optimizers):
            name = f"optimizer_{number}"
            kept = {key.rpartition(".")[2] for key in saved if key.startswith(f"{name}.state.")}
            if not kept or not fits(kept, module.optimizer_factory, device=self.root_device):
                continue  # saved before its first step, or by another
            state = get_optimizer_state_dict(self.model, optimizer)
            moments = {name: {"state": state["state"]}}  # rates and the like are the config's
            dcp.load(moments, checkpoint_id=path)
            set_optimizer_state_dict(self.model, optimizer, optim_state_dict=state | moments[name])


def _distributed_like(full: Tensor, own: Tensor) -> Tensor:
    """This rank's part of ``full``, which every rank has."""
    full = full.to(device=own.device, dtype=own.dtype)
    if not isinstance(own, DTensor):
        return full
    return distribute_tensor(full, own.device_mesh, own.placements, src_data_rank=None)


def distributed(policy: Policy, strategy: Strategy) -> nn.Module:
    """The policy as a strategy wants it: in shards under ``fsdp2`` and ``fsdp``, as it is under all others."""
    if isinstance(strategy, FSDP2Strategy):
        return strategy.sharded(policy)
    if isinstance(strategy, FSDPStrategy):
        return _wrapped_by_fsdp1(policy, strategy)
    return policy


def _wrapped_by_fsdp1(policy: Policy, strategy: FSDPStrategy) -> nn.Module:
    """FSDP1 with the strategy's own options; call it where they hold, inside ``configure_model``."""
    if lora_layers(policy.model):
        raise UserError(
            "--trainer.strategy fsdp: cannot train an adapter (its shards mix what is trained and what is frozen); "
            "use --trainer.strategy fsdp2"
        )
    if isinstance(policy, PolicyWithValues | Critic):
        raise UserError(
            "--trainer.strategy fsdp: cannot clip policy and critic by themselves, nor keep values in float32; use "
            "--trainer.strategy fsdp2"
        )
    options: dict[str, Any] = {"device_id": strategy.root_device}
    if layers := {type(layer) for layer in decoder_layers(policy)}:
        options["auto_wrap_policy"] = ModuleWrapPolicy(layers)
    if strategy.mixed_precision is None and str(strategy.precision_plugin.precision).startswith("bf16"):
        # As under fsdp2. Lightning's also rounds sums of gradients and, worse, the frequencies of rotary positions.
        options["mixed_precision"] = MixedPrecisionFSDP1(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32, buffer_dtype=torch.float32
        )
    return wrap(policy, **options)


StrategyRegistry.register("fsdp2", FSDP2Strategy, description="Fully sharded data parallelism (torch fully_shard)")
