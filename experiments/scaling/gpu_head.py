"""The fused head against the plain form on one card: seconds, bytes, and how far apart they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from experiments.scaling.gpu_meter import Meter
from experiments.scaling.gpu_rates import DTYPES
from grpo_lightning.functional.logprobs import head_logprobs, logprobs_from_logits

Head = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def plain(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies from all logits at once, with autograd's own backward."""
    logits = (hidden @ weight.T).float()
    log_p = logits.log_softmax(dim=-1)
    return logprobs_from_logits(logits, targets), -(log_p.exp() * log_p).sum(dim=-1)


def head_part(meter: Meter, sizes: dict[str, Any]) -> dict[str, Any]:
    """Forward and backward through log-probabilities alone, as GRPO without an entropy bonus has it.

    Bytes are those above the inputs, which lie there before; ``beyond gradients`` takes off the gradients of states and
    weight too, which every form must leave behind.
    """
    found: dict[str, Any] = {}
    for name, shape in sizes["head"].items():
        for dtype_name, dtype in DTYPES.items():
            found[f"{name}, {dtype_name}"] = _compared(meter, shape, dtype)
            meter.free()
    return found


def _compared(meter: Meter, shape: dict[str, int], dtype: torch.dtype) -> dict[str, Any]:
    torch.manual_seed(0)
    device = meter.device
    hidden = torch.randn(shape["tokens"], shape["hidden"], device=device).to(dtype).requires_grad_()
    weight = (0.02 * torch.randn(shape["vocabulary"], shape["hidden"], device=device)).to(dtype).requires_grad_()
    targets = torch.randint(shape["vocabulary"], (shape["tokens"],), device=device)
    slopes = torch.randn(shape["tokens"], device=device)
    gradients = (hidden.numel() + weight.numel()) * dtype.itemsize
    forms: dict[str, Head] = {"fused": head_logprobs, "plain": plain}
    found: dict[str, Any] = {}
    for name, form in forms.items():
        try:
            found[name] = _one(meter, form, (hidden, weight, targets), slopes, gradients)
        except torch.OutOfMemoryError as error:
            found[name] = {"error": str(error).split(". ")[0]}
        hidden.grad = weight.grad = None
        meter.free()
    found["largest difference of log-probabilities"] = _gap(hidden, weight, targets)
    if "seconds" in found["plain"]:
        found["fused / plain seconds"] = found["fused"]["seconds"] / found["plain"]["seconds"]
    return found


def _one(
    meter: Meter, form: Head, inputs: tuple[Tensor, Tensor, Tensor], slopes: Tensor, gradients: int
) -> dict[str, Any]:
    hidden, weight, _ = inputs

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
