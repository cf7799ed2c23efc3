"""The policy's weights on their way to the sampler."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor
from torch.distributed.tensor import DTensor

from grpo_lightning.engines.skeleton import tied_aliases
from grpo_lightning.models.policy import Policy


def named_weights(policy: Policy) -> Iterator[tuple[str, Tensor]]:
    """(name, full tensor) of all that a checkpoint holds, tied tensors once, under the Hugging Face model's own names.

    That is every parameter and every saved buffer (some mixture-of-experts routers keep a trained bias in one).

    A generator: under FSDP2 one full tensor at a time is gathered, in the same order on every rank.
    """
    aliases = tied_aliases(policy.model)
    for name, tensor in policy.model.state_dict().items():
        if name not in aliases:
            yield name, tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
