"""The policy's structure without its weights: which tensors a sampler must be sent, and under what names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from grpo_lightning.engines.base import ModelSpec
from grpo_lightning.errors import UserError


class WeightsMismatchError(RuntimeError):
    """The tensors that were sent are not those that the sampler's model has."""


def empty_model(spec: ModelSpec) -> nn.Module:
    """The Hugging Face model of ``spec`` in eval mode, with every parameter on the meta device.

    Nothing is read but the configuration, nothing is allocated but the buffers (rotary frequencies, masks), which are
    computed on the CPU as in a loaded model. The folder's ``generation_config`` is not looked at.

    Raises:
        UserError: if there is no such model, or it is no causal language model.
    """
    from accelerate import init_empty_weights
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    try:
        config = AutoConfig.from_pretrained(spec.name_or_path, trust_remote_code=spec.trust_remote_code)
        with init_empty_weights(include_buffers=False), no_init_weights():
            model = AutoModelForCausalLM.from_config(
                config,
                dtype=spec.dtype,
                attn_implementation=spec.attn_implementation,
                trust_remote_code=spec.trust_remote_code,
            )
    except (OSError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise UserError(
            f"the sampler cannot build the model {spec.name_or_path!r}: {reason} "
            "Give the name or folder of a causal language model."
        ) from error
    # Making each parameter empty replaced it, and with that broke the tie of embedding and head.
    model.tie_weights()
    return model.eval().requires_grad_(False)


def weight_shapes(model: nn.Module) -> dict[str, torch.Size]:
    """Name and shape of every tensor that makes up the weights: parameters and saved buffers, tied ones once.

    The same names, in the same order, from any model of this architecture: a sender iterates over these.
    """
    aliases = tied_aliases(model)
    return {name: tensor.shape for name, tensor in model.state_dict().items() if name not in aliases}


def tied_aliases(model: nn.Module) -> dict[str, str]:
    """Second names of tied tensors, each with the name under which ``weight_shapes`` lists the tensor."""
    first: dict[int, str] = {}
    aliases: dict[str, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if first.setdefault(id(tensor), name) != name:
            aliases[name] = first[id(tensor)]
    return aliases


def checked(tensors: Iterable[tuple[str, Tensor]], expected: dict[str, torch.Size]) -> Iterator[tuple[str, Tensor]]:
    """Pass ``tensors`` on one by one, and insist that they are exactly the expected ones.

    Raises:
        WeightsMismatchError: on the first name that is unknown, comes twice or has another shape; at the end, if one
            is missing.
    """
    missing = dict(expected)
    for name, tensor in tensors:
        if name not in missing:
            kind = "was sent twice" if name in expected else "is unknown to the sampler's model"
            raise WeightsMismatchError(f"weight sync: {name!r} {kind}; the sampler's weights are incomplete now.")
        shape = missing.pop(name)
        if tensor.shape != shape:
            raise WeightsMismatchError(
                f"weight sync: {name!r} has shape {tuple(tensor.shape)}, the sampler's model wants {tuple(shape)}."
            )
        yield name, tensor
    if missing:
        some = ", ".join(list(missing)[:5]) + (", ..." if len(missing) > 5 else "")
        raise WeightsMismatchError(f"weight sync: {len(missing)} of {len(expected)} tensors were not sent: {some}")
