"""How large a run's state is, in weights and bytes, before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from grpo_lightning.engines.base import ModelSpec
from grpo_lightning.engines.skeleton import empty_model
from grpo_lightning.models.adapters import LoRA
from grpo_lightning.models.optimizers import ParameterGroup, make_optimizer

ADAM_BYTES = 8.0
"""Of state for each trained weight: two moments in float32."""
TRIED = 128
"""Rows and columns of the layer that an optimizer is tried on."""


def count_weights(name_or_path: str, *, adapter: LoRA | None = None, trust_remote_code: bool = False) -> dict[str, int]:
    """Weights of a model, tied ones once: ``all`` of them and those that are ``trained``, which is all or an adapter's.

    Args:
        name_or_path: Hugging Face id or folder; only its configuration is read.
        adapter: that is trained in the place of the model.
        trust_remote_code: run model code that comes with it.
    """
    spec = ModelSpec(
        name_or_path=name_or_path,
        eos_token_ids=(),
        pad_token_id=0,
        max_length=0,
        trust_remote_code=trust_remote_code,
    )
    model: Any = empty_model(spec)
    weights = sum(parameter.numel() for parameter in model.parameters())
    return {"all": weights, "trained": weights if adapter is None else _adapter_weights(model, adapter)}


def _adapter_weights(model: Any, adapter: LoRA) -> int:
    if adapter.path is not None:
        from peft import load_peft_weights

        return sum(tensor.numel() for tensor in load_peft_weights(adapter.path, device="cpu").values())
    adapter.attach(model, with_reference=False)
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def state_bytes(factory: Callable[..., Optimizer] | None) -> float:
    """Bytes that an optimizer keeps for each weight that it trains, tried on a small layer.

    Args:
        factory: as in ``make_optimizer``; one that runs on GPUs alone is taken to be Adam in float32.
    """
    layer = nn.Module()
    layer.weight = nn.Parameter(torch.zeros(TRIED, TRIED))
    layer.weight.grad = torch.zeros(TRIED, TRIED)
    try:
        optimizer = make_optimizer([ParameterGroup(layer)], factory, lr=0.0)
        optimizer.step()
    except Exception:  # whatever a package without its GPU raises
        return ADAM_BYTES
    kept = [tensor for state in optimizer.state.values() for tensor in _tensors(state) if tensor.dim()]
    return sum(tensor.numel() * tensor.element_size() for tensor in kept) / TRIED**2


def _tensors(state: dict[str, Any]) -> Iterator[Tensor]:
    yield from (value for value in state.values() if isinstance(value, Tensor))


def in_words(size: float) -> str:
    """Bytes for a reader: ``1.5 GB``."""
    for unit, name in ((1e9, "GB"), (1e6, "MB")):
        if size >= 0.9995 * unit:  # what is rounded to it
            return f"{size / unit:.3g} {name}" if size < 1000 * unit else f"{size / unit:,.0f} {name}"
    return f"{size / 1e3:.3g} kB"
