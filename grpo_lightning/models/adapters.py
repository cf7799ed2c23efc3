"""Low-rank adapters by peft: attached in place, switched off for the reference, merged for the sampler."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from grpo_lightning.errors import UserError

log = logging.getLogger(__name__)
TRAINED, REFERENCE = "default", "reference"
"""peft's names of the adapter that is trained, and of the frozen copy of the trained adapter a run began with."""


class LoRA:
    """Low-rank adaptation (arXiv 2106.09685): W + (lora_alpha / r) · B A, with W frozen and only A and B trained.

    There is no dropout: it would make the policy that is trained another one than the policy that sampled.

    Args:
        r: rank, the columns of B and rows of A.
        lora_alpha: scale of the update, divided by ``r``.
        target_modules: names of the linear layers that get an adapter; ``all-linear`` is all but the head.
        use_rslora: divide by the square root of ``r`` instead (arXiv 2312.03732).
        path: folder or hub id of a trained adapter to go on with; the other arguments are then its own. The
            reference policy is that adapter as it is found there.
    """

    def __init__(
        self,
        *,
        r: int = 16,
        lora_alpha: float = 32.0,
        target_modules: str | list[str] = "all-linear",
        use_rslora: bool = False,
        path: str | None = None,
    ) -> None:
        if r < 1:
            raise UserError(f"--model.adapter.r {r}: a rank must be at least 1 (8 to 64 are usual)")
        if lora_alpha <= 0:
            raise UserError(f"--model.adapter.lora_alpha {lora_alpha}: must be positive (usual: twice the rank)")
        if not target_modules:
            raise UserError("--model.adapter.target_modules: name at least one layer, or all-linear")
        self.r, self.lora_alpha, self.use_rslora = r, lora_alpha, use_rslora
        self.target_modules = target_modules
        self.path = path

    def attach(self, model: PreTrainedModel, *, with_reference: bool) -> None:
        """Freeze ``model`` and put a trainable adapter on it, in place.

        Args:
            model: keeps its class and the names of its own weights, but for ``.base_layer`` in adapted layers.
            with_reference: keep a frozen copy of an adapter loaded from ``path`` for ``reference_adapter``.

        Raises:
            UserError: if the model has no such layers, or the adapter at ``path`` cannot be loaded or is of a kind that
                cannot be merged.
        """
        with warnings.catch_warnings():
            # Of what is meant: two adapters on one model, and GPT-2's transposed layers.
            warnings.filterwarnings("ignore", message="Already found a `peft_config`|fan_in_fan_out is set to False")
            self._put_on(model, with_reference=with_reference)
        for module in (model.get_input_embeddings(), model.get_output_embeddings()):
            if any("lora_" in name for name, _ in module.named_parameters()):
                raise UserError(
                    "--model.adapter.target_modules: an adapter on the embedding or the head is not supported; "
                    "all-linear leaves them out"
                )
        for parameter in model.parameters():
            if parameter.requires_grad:  # small, and steps of 1e-6 get lost in bfloat16
                parameter.data = parameter.data.float()

    def _put_on(self, model: PreTrainedModel, *, with_reference: bool) -> None:
        from peft import LoraConfig

        if self.path is None:
            config = LoraConfig(
                r=self.r,
                lora_alpha=self.lora_alpha,
                target_modules=self.target_modules,
                use_rslora=self.use_rslora,
                lora_dropout=0.0,
                bias="none",
                task_type="CAUSAL_LM",
            )
            try:
                model.add_adapter(config, TRAINED)
            except ValueError as error:
                raise UserError(
                    f"--model.adapter.target_modules {self.target_modules}: {' '.join(str(error).split())}"
                ) from error
        else:
            self._load(model, with_reference=with_reference)

    def _load(self, model: PreTrainedModel, *, with_reference: bool) -> None:
        from peft import PeftConfig

        assert self.path is not None
        try:
            config: Any = PeftConfig.from_pretrained(self.path)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise UserError(
                f"--model.adapter.path {self.path}: no adapter can be read there; give a folder with "
                f"adapter_config.json, as a run writes to adapter/ ({' '.join(str(error).split())[:200]})"
            ) from error
        kind = getattr(config.peft_type, "value", config.peft_type)
        others = ("use_dora", "modules_to_save", "trainable_token_indices", "target_parameters")
        odd = [name for name in others if getattr(config, name, None)]
        if kind != "LORA" or odd or config.bias != "none":
            raise UserError(
                f"--model.adapter.path {self.path}: plain LoRA adapters only, and this is {kind} with "
                f"{', '.join(odd) or f'bias {config.bias!r}'}"
            )
        for name in (TRAINED, REFERENCE) if with_reference else (TRAINED,):
            try:
                model.load_adapter(self.path, name, is_trainable=True)
            except (OSError, ValueError, RuntimeError, KeyError) as error:
                raise UserError(
                    f"--model.adapter.path {self.path}: does not fit the model: {' '.join(str(error).split())[:200]}"
                ) from error
        for layer in lora_layers(model).values():
            layer.lora_dropout.update({name: nn.Identity() for name in layer.lora_dropout})
        model.set_adapter(TRAINED)
        log.info("adapter %s: r %d, lora_alpha %g", self.path, config.r, config.lora_alpha)


@contextmanager
def reference_adapter(model: PreTrainedModel) -> Iterator[None]:
    """Inside, ``model`` is the policy the run began with: adapters off, or the adapter it started from."""
    try:
        if REFERENCE in model.peft_config:
            model.set_adapter(REFERENCE)
        else:
            model.disable_adapters()
        yield
    finally:
        # Each also gives the trained adapter its gradients back, which peft takes from an adapter that is not in use.
        model.enable_adapters()
        model.set_adapter(TRAINED)


def lora_layers(model: nn.Module) -> dict[str, Any]:
    """The adapted layers by the name that the plain layer has; empty if the model has no adapter."""
    if not getattr(model, "_hf_peft_config_loaded", False):
        return {}
    from peft.tuners.lora import LoraLayer

    return {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}


def merged_tensors(model: PreTrainedModel, state: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The full tensors of ``state`` under the plain model's names, adapters added to what they adapt.

    The sum is a new tensor in float32, whatever the weights' dtype: adding in bfloat16, or in place, would wear the
    weights down with every use.

    Args:
        model: with or without adapters.
        state: of ``model.state_dict()``, or a part of it.
    """
    layers = lora_layers(model)
    for name, tensor in state.items():
        prefix, _, leaf = name.rpartition(".base_layer.")
        if prefix not in layers:
            if not any(name.startswith(f"{layer}.") for layer in _parents(name, layers)):
                yield name, whole(tensor)
        elif leaf == "weight":
            yield f"{prefix}.{leaf}", whole(tensor).float() + _delta(layers[prefix])
        else:
            yield f"{prefix}.{leaf}", whole(tensor)


def _parents(name: str, layers: dict[str, Any]) -> Iterator[str]:
    """The adapted layers that ``name`` lies in."""
    parts = name.split(".")
    return (prefix for i in range(len(parts)) if (prefix := ".".join(parts[:i])) in layers)


@torch.no_grad()
def _delta(layer: Any) -> Tensor:
    """(lora_alpha / r) · B A of the trained adapter, in the layout of the layer's weight, float32."""
    down, up = whole(layer.lora_A[TRAINED].weight), whole(layer.lora_B[TRAINED].weight)
    product = (up.float() @ down.float()) * layer.scaling[TRAINED]
    return product.T if layer.fan_in_fan_out else product


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor that may be sharded; collective if it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
