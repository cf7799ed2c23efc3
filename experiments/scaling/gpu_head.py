"""The fused head against the plain form on one card: seconds, bytes, and how far apart they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from experiments.scaling.gpu_meter import Meter
from grpo_lightning.functional.logprobs import head_logprobs

FORMS = {
    "float32": (torch.float32, torch.float32),
    "bfloat16": (torch.bfloat16, torch.bfloat16),
    "mixed": (torch.bfloat16, torch.float32),
}
"""Dtypes of states and weight; mixed is what bf16-mixed makes of a float32 model."""
Head = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def plain(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """From all logits at once, with autograd's own backward; entropies without a gradient."""
    log_p = (hidden @ weight.to(hidden.dtype).T).float().log_softmax(dim=-1)
    with torch.no_grad():
        entropy = -(log_p.exp() * log_p).sum(dim=-1)
    return log_p.gather(1, targets[:, None]).squeeze(1), entropy


def head_part(meter: Meter, sizes: dict[str, Any]) -> dict[str, Any]:
    """Forward and backward through log-probabilities alone, as GRPO without an entropy bonus has it.

    Bytes are those above the inputs, which lie there before; ``beyond gradients`` takes off the gradients of states and
    weight too, which every form must leave behind.
    """
    found: dict[str, Any] = {}
    for name, shape in sizes["head"].items():
        for form, dtypes in FORMS.items():
            found[f"{name}, {form}"] = _compared(meter, shape, dtypes)
            meter.free()
    return found


def _compared(meter: Meter, shape: dict[str, int], dtypes: tuple[torch.dtype, torch.dtype]) -> dict[str, Any]:
    torch.manual_seed(0)
    device, (of_states, of_weight) = meter.device, dtypes
    hidden = torch.randn(shape["tokens"], shape["hidden"], device=device).to(of_states).requires_grad_()
    weight = (0.02 * torch.randn(shape["vocabulary"], shape["hidden"], device=device)).to(of_weight).requires_grad_()
    targets = torch.randint(shape["vocabulary"], (shape["tokens"],), device=device)
    slopes = torch.randn(shape["tokens"], device=device)
    forms: dict[str, Head] = {"fused": head_logprobs, "plain": plain}
    found: dict[str, Any] = {}
    for name, form in forms.items():
        found[name] = meter.if_it_fits(lambda form=form: _one(meter, form, (hidden, weight, targets), slopes))
        hidden.grad = weight.grad = None
        meter.free()
    found["largest difference of log-probabilities"] = _gap(hidden, weight, targets)
    if "seconds" in found["plain"]:
        found["fused / plain seconds"] = found["fused"]["seconds"] / found["plain"]["seconds"]
    return found


def _one(meter: Meter, form: Head, inputs: tuple[Tensor, Tensor, Tensor], slopes: Tensor) -> dict[str, Any]:
    hidden, weight, _ = inputs
    gradients = hidden.nbytes + weight.nbytes

    def run() -> None:
        hidden.grad = weight.grad = None
        form(*inputs)[0].backward(slopes)

    run()
    hidden.grad = weight.grad = None
    used = meter.peak(run)
    beyond = None if used["peak"] is None else used["peak"] - gradients
    forward = meter.seconds(lambda: form(*inputs), repeats=3)
    return {"seconds": meter.seconds(run, repeats=3), "forward seconds": forward, **used, "beyond gradients": beyond}


@torch.no_grad()
def _gap(hidden: Tensor, weight: Tensor, targets: Tensor) -> float:
    """On the first tokens, where the plain form is small, against it in float32."""
    first = slice(0, 256)
    fused, _ = head_logprobs(hidden[first], weight, targets[first])
    exact, _ = plain(hidden[first].float(), weight.float(), targets[first])
    return float((fused - exact).abs().max())
