"""The policy's weights on their way to the sampler."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor
from torch.distributed.tensor import DTensor

from grpo_lightning.models.policy import Policy


def named_weights(policy: Policy) -> Iterator[tuple[str, Tensor]]:
    """(name, full tensor) of every parameter, tied ones once, under the Hugging Face model's own names.

    A generator: under FSDP2 one full tensor at a time is gathered, in the same order on every rank.
    """
    for name, parameter in policy.model.named_parameters():
        tensor = parameter.detach()
        yield name, tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
