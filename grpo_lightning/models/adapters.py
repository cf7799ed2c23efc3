"""Low-rank adapters by peft: attached in place, switched off for the reference, merged for the sampler."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from grpo_lightning.errors import UserError, in_one_line

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
        from peft.tuners.lora.layer import ParamWrapper

        with warnings.catch_warnings():
            # Of what is meant: two adapters on one model, and GPT-2's transposed layers.
            warnings.filterwarnings("ignore", message="Already found a `peft_config`|fan_in_fan_out is set to False")
            self._put_on(model, with_reference=with_reference)
        if any(isinstance(module, ParamWrapper) for module in model.modules()):
            raise UserError("--model.adapter: a mixture of experts cannot have an adapter yet; train the whole model")
        for module in (model.get_input_embeddings(), model.get_output_embeddings()):
            if any("lora_" in name for name, _ in module.named_parameters()):
                raise UserError(
                    "--model.adapter.target_modules: an adapter on the embedding or the head is not supported; "
                    "all-linear leaves them out"
                )

    def _put_on(self, model: PreTrainedModel, *, with_reference: bool) -> None:
        from peft import LoraConfig

        if self.path is not None:
            self._load(model, with_reference=with_reference)
            return
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
            _add(model, config, TRAINED)
        except ValueError as error:
            raise UserError(f"--model.adapter.target_modules {self.target_modules}: {in_one_line(error)}") from error

    def _load(self, model: PreTrainedModel, *, with_reference: bool) -> None:
        from peft import LoraConfig, PeftConfig, load_peft_weights

        flag = f"--model.adapter.path {self.path}"
        try:
            config: Any = PeftConfig.from_pretrained(self.path)
            saved = load_peft_weights(self.path, device="cpu")
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise UserError(
                f"{flag}: no adapter can be read there; give a folder with adapter_config.json, as a run writes to "
                f"adapter/ ({in_one_line(error)[:200]})"
            ) from error
        if odd := _beyond_plain_lora(config, LoraConfig()):
            raise UserError(f"{flag}: plain LoRA adapters only, and this one has {', '.join(odd)}")
        config.lora_dropout, config.inference_mode = 0.0, False
        saved = {name.removeprefix("base_model.model."): tensor for name, tensor in saved.items()}
        for name in (TRAINED, REFERENCE) if with_reference else (TRAINED,):
            try:
                _add(model, config, name)
                missing = _fill(model, saved, name)
            except (ValueError, RuntimeError) as error:
                missing = [in_one_line(error)[:200]]
            if missing:
                raise UserError(f"{flag}: does not fit the model: {missing[0]}")
        model.set_adapter(TRAINED)
        log.info(
            "adapter %s: r %d, lora_alpha %g (its own; --model.adapter's are not used)",
            self.path, config.r, config.lora_alpha,
        )  # fmt: skip


PLAIN = {
    *("r", "lora_alpha", "target_modules", "exclude_modules", "use_rslora", "rank_pattern", "alpha_pattern"),
    *("layers_to_transform", "layers_pattern", "fan_in_fan_out", "lora_dropout", "inference_mode"),
    *("task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "runtime_config"),
    *("megatron_core", "qalora_group_size", "ensure_weight_tying"),
}
"""Fields of peft's ``LoraConfig`` under which an adapter is W + s · B A, whatever their values."""


def _beyond_plain_lora(config: Any, default: Any) -> list[str]:
    """What makes an adapter another thing than W + s · B A: its sampler would get other weights than the policy has."""
    if type(config) is not type(default):
        return [f"peft_type {getattr(config.peft_type, 'value', config.peft_type)}"]
    odd = [f for f in vars(default) if f not in PLAIN and getattr(config, f) != getattr(default, f)]
    if config.init_lora_weights in (False, "gaussian"):  # others change W as well
        odd.remove("init_lora_weights")
    return odd


def _add(model: PreTrainedModel, config: Any, name: str) -> None:
    """A new adapter in float32: it is small, and steps of 1e-6 get lost in bfloat16."""
    model.add_adapter(config, name)
    for parameter_name, parameter in model.named_parameters():
        if f".{name}." in parameter_name:
            parameter.data = parameter.data.float()


def _fill(model: PreTrainedModel, saved: dict[str, Tensor], name: str) -> list[str]:
    """Give an adapter its saved weights; the names that only one of the two has."""
    from peft import set_peft_model_state_dict

    result = set_peft_model_state_dict(model, saved, adapter_name=name)
    return [*result.unexpected_keys, *(missing for missing in result.missing_keys if f".{name}." in missing)]


@contextmanager
def reference_adapter(model: PreTrainedModel) -> Iterator[None]:
    """Inside, ``model`` is the policy the run began with: adapters off, or the adapter it started from."""
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]

    def keep_flags() -> None:
        # peft moves them to the adapter in use. Under no_grad that would mean nothing, but FSDP2 settles its dtypes in
        # its first forward by what requires a gradient then.
        for parameter, flag in flags:
            parameter.requires_grad_(flag)

    try:
        if REFERENCE in model.peft_config:
            model.set_adapter(REFERENCE)
        else:
            model.disable_adapters()
        keep_flags()
        yield
    finally:
        model.enable_adapters()
        model.set_adapter(TRAINED)
        keep_flags()


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
        state: of ``model.state_dict()``.
    """
    layers = lora_layers(model)
    for name, tensor in state.items():
        if layers and ".lora_" in name:
            continue
        prefix, full = name.removesuffix(".base_layer.weight"), whole(tensor)
        if prefix in layers:
            yield f"{prefix}.weight", full.float() + _delta(prefix, layers[prefix], state)
        else:
            yield name.replace(".base_layer.", "."), full


def _delta(prefix: str, layer: Any, state: dict[str, Tensor]) -> Tensor:
    """(lora_alpha / r) · B A of the trained adapter, in the layout of the layer's weight, float32."""
    down, up = (whole(state[f"{prefix}.lora_{part}.{TRAINED}.weight"]).float() for part in "AB")
    product = (up @ down) * layer.scaling[TRAINED]
    return product.T if layer.fan_in_fan_out else product


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor that may be sharded; collective if it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
