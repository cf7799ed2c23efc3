"""What the card itself does: products, copying, thin products as in decoding, kinds of attention."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from experiments.scaling.gpu_meter import Meter

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
BACKENDS = ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION", "MATH")


def rates_part(meter: Meter, sizes: dict[str, Any]) -> dict[str, Any]:
    """FLOP/s of square products (float32 without TF32, as torch comes), bytes/s of copying, and of thin products.

    A thin product, rows x (hidden, width), is what a decoding step does: its bytes are those of the matrix.
    """
    found: dict[str, Any] = {"matmul_flops": {}, "thin_bytes_per_second": {}}
    side = sizes["square"]
    for name, dtype in DTYPES.items():
        square = torch.randn(side, side, device=meter.device).to(dtype)
        found["matmul_flops"][name] = 2 * side**3 / meter.seconds(lambda square=square: square @ square, inner=3)
    source = torch.ones(sizes["copied"], dtype=torch.uint8, device=meter.device)
    target = torch.empty_like(source)
    found["copy_bytes_per_second"] = 2 * sizes["copied"] / meter.seconds(lambda: target.copy_(source), inner=3)
    thin = sizes["thin"]
    matrix = torch.randn(thin["width"], thin["hidden"], device=meter.device).bfloat16()
    for rows in thin["rows"]:
        states = torch.randn(rows, thin["hidden"], device=meter.device).bfloat16()
        taken = meter.seconds(lambda states=states: F.linear(states, matrix), inner=10)
        found["thin_bytes_per_second"][str(rows)] = 2 * matrix.numel() / taken
    return found


def attention_part(meter: Meter, sizes: dict[str, Any]) -> dict[str, Any]:
    """Causal attention forward and backward in bfloat16 by every kind that torch has, or why it does not run."""
    shape = sizes["attention"]
    size = (shape["rows"], shape["heads"], shape["tokens"], shape["width"])
    query, key, value = (torch.randn(size, device=meter.device).bfloat16().requires_grad_() for _ in range(3))
    found: dict[str, Any] = {"flash_attn installed": importlib.util.find_spec("flash_attn") is not None}
    for name in BACKENDS:

        def run(name: str = name) -> None:
            with sdpa_kernel(getattr(SDPBackend, name)):
                F.scaled_dot_product_attention(query, key, value, is_causal=True).sum().backward()

        try:
            found[name] = {"seconds": meter.seconds(run, repeats=3)}
        except RuntimeError as error:
            found[name] = {"error": str(error).split("\n")[0][:200]}
    return found
