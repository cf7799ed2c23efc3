"""A policy spread over all ranks, layer by layer: each rank keeps its share and gathers a layer only to compute it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from grpo_lightning.models.critic import Critic, PolicyWithValues
from grpo_lightning.models.policy import Policy


def shard(policy: Policy, mesh: DeviceMesh, *, bfloat16: bool) -> Policy:
    """Shard ``policy`` in place by FSDP2 (``fully_shard``), which makes calling it a collective of all ranks.

    The policy itself is the root: its forward computes decoder and head while the head's weight is gathered. Wrapping
    anything around it (the LightningModule) would have its inputs cast, old log-probabilities and advantages included.

    Args:
        policy: on any device; its parameters become DTensors on the mesh's.
        mesh: one dimension, the data-parallel ranks.
        bfloat16: compute in bfloat16, with float32 weights and float32 sums of gradients. In place of autocast, which
            keeps a bfloat16 copy of every gathered weight for the backward.
    """
    low: dict[str, Any] = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32} if bfloat16 else {}
    precision = MixedPrecisionPolicy(**low)
    if isinstance(policy, PolicyWithValues | Critic):
        fully_shard(policy.value_head, mesh=mesh)  # by itself, since it stays in float32
    for layer in decoder_layers(policy):
        fully_shard(layer, mesh=mesh, mp_policy=precision)
    fully_shard(policy, mesh=mesh, mp_policy=precision)
    return policy


def decoder_layers(policy: Policy) -> list[nn.Module]:
    """The blocks that a model's authors say must stay whole (``_no_split_modules``): its decoder layers."""
    names = set(policy.model._no_split_modules or ())
    return [module for module in policy.model.modules() if type(module).__name__ in names]


def reshard(policy: nn.Module) -> None:
    """Give back what a forward without a backward leaves gathered: FSDP2 keeps the root for a backward to come."""
    if isinstance(policy, FSDPModule):
        policy.reshard()
