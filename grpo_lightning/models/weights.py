"""The policy's weights on their way to the sampler and to an export."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel

from grpo_lightning.models.adapters import merged_tensors


def named_weights(policy: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """(name, full tensor) of all that a checkpoint holds, tied tensors once, under the Hugging Face model's own names.

    That is every parameter and every saved buffer (some mixture-of-experts routers keep a trained bias in one).
    Adapters are merged into copies of what they adapt.

    A generator: under FSDP2 one full tensor at a time is gathered, in the same order on every rank.

    Args:
        policy: a ``Policy``, plain or sharded.
    """
    yield from merged_tensors(policy.model, model_state(policy))


def model_state(policy: nn.Module) -> dict[str, Tensor]:
    """The model's tensors by name, tied ones once, adapters and shards as they are (FSDP1: gathered)."""
    if isinstance(policy, FullyShardedDataParallel):
        state = get_model_state_dict(policy, options=StateDictOptions(full_state_dict=True))
        state = {name.removeprefix("model."): tensor for name, tensor in state.items()}
    else:
        state = policy.model.state_dict()
    return {name: tensor for name, tensor in state.items() if name not in policy.tied}
