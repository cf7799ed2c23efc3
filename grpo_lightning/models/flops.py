"""How many floating-point operations a step needs, and how many the machine does in a second."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

import torch

PEAKS = {
    "B200": 2250e12,  # Blackwell data sheet, HGX B200
    "GH200": 989e12,  # Grace Hopper data sheet
    "H200": 989e12,  # H200 data sheet
    "H100 PCIe": 756e12,  # H100 data sheet, as the two below
    "H100 NVL": 835e12,
    "H100": 989e12,
    "A100": 312e12,  # A100 data sheet
    "A100 PCIe": 312e12,
    "A40": 150e12,  # A40 data sheet
    "A10": 125e12,  # A10 data sheet
    "L40S": 362e12,  # L40S data sheet
    "L40": 181e12,  # L40 data sheet
    "L4": 121e12,  # L4 data sheet
    "RTX 5090": 210e12,  # Blackwell architecture white paper (GeForce), float32 sums
    "RTX 4090": 165e12,  # Ada architecture white paper, float32 sums
    "RTX 3090": 71e12,  # Ampere GA102 architecture white paper, float32 sums
    "MI300X": 1307e12,  # AMD's Instinct MI300X data sheet
}
"""Operations a second in dense bfloat16 products, without sparsity, by the device's name without ``PLAIN`` words.
Makers print twice as much for sparse products."""
PLAIN = re.compile(r"nvidia|amd|instinct|geforce|tesla|sxm\d?|hbm\d\w?|\d+gb?")
"""Words of a name that tell nothing of the peak. Any other does: an "RTX 4090 Laptop GPU" is another chip, and a slice
of a card ("MIG 1g.10gb") a part of it."""
MEASURED_SIZES = (8192, 4096, 2048)
"""Of the matrices by which a GPU is measured, the first that fits: smaller ones do not keep a large GPU busy."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a decoder multiplies by: Llama's layout, as Qwen2 and Gemma 3 have it."""

    layers: int
    hidden: int
    heads: int
    key_heads: int
    head_size: int
    mlp: int
    vocabulary: int

    @classmethod
    def of(cls, config: Any) -> Self:
        """From a transformers configuration.

        Raises:
            AttributeError: if it is of another layout; a mixture of experts is.
        """
        text = config.get_text_config()
        if any(hasattr(text, experts) for experts in ("num_experts", "num_local_experts", "n_routed_experts")):
            raise AttributeError("a mixture of experts multiplies each token by some of its weights only")
        heads = text.num_attention_heads
        return cls(
            layers=text.num_hidden_layers,
            hidden=text.hidden_size,
            heads=heads,
            key_heads=text.num_key_value_heads,
            head_size=getattr(text, "head_dim", None) or text.hidden_size // heads,
            mlp=text.intermediate_size,
            vocabulary=text.vocab_size,
        )

    @property
    def weights(self) -> int:
        """Entries of all matrices but embedding and head: queries, keys, values, output; gate, up, down."""
        attention = 2 * self.hidden * self.head_size * (self.heads + self.key_heads)
        return self.layers * (attention + 3 * self.hidden * self.mlp)


@dataclass(frozen=True)
class Group:
    """A prompt and its completions, in tokens."""

    prompt: int
    completions: tuple[int, ...]


def forward_flops(shape: Shape, groups: Sequence[Group]) -> int:
    """The least that one forward takes: prompts once a group, no padding, the head for completion tokens alone.

    2 a weight and token; 4 · heads · head size for each pair of a query and a key that it sees, in every layer;
    2 · hidden · vocabulary for each completion token. Norms, activations and softmax are not counted.
    """
    tokens = pairs = completed = 0
    for group in groups:
        tokens += group.prompt + sum(group.completions)
        completed += sum(group.completions)
        pairs += group.prompt * (group.prompt + 1) // 2
        pairs += sum(length * group.prompt + length * (length + 1) // 2 for length in group.completions)
    attention = 4 * shape.layers * shape.heads * shape.head_size * pairs
    return 2 * shape.weights * tokens + attention + 2 * shape.hidden * shape.vocabulary * completed


def matmul_rate(dtype: torch.dtype, *, device: str, size: int = 2048, repeats: int = 9) -> float:
    """Operations per second in the product of two square matrices: the median of some, after a first one.

    The run's own random numbers are not touched.
    """
    generator = torch.Generator(device).manual_seed(0)
    left, right = (torch.randn(size, size, device=device, generator=generator).to(dtype) for _ in range(2))
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        left @ right
        if device != "cpu":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / statistics.median(seconds[1:])


@cache
def peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Operations per second that ``device`` can do: by its name (``PEAKS``, whatever the dtype), else measured.

    Args:
        device: of the policy.
        dtype: that it computes in; of what is measured, which takes a tenth of a second on a processor's core.
    """
    if device.type == "cuda" and (known := peak_by_name(torch.cuda.get_device_name(device))):
        return known
    for size in MEASURED_SIZES if device.type == "cuda" else ():
        with suppress(torch.OutOfMemoryError):
            return matmul_rate(dtype, device=device.type, size=size, repeats=2)
    return matmul_rate(dtype, device=device.type, size=1024, repeats=2)


def peak_by_name(name: str) -> float | None:
    """Operations per second of a GPU, from the name that torch has for it; None for one that is not known."""
    words = {word for word in re.findall(r"[\w.]+", name.lower()) if not PLAIN.fullmatch(word)}
    return next((peak for card, peak in PEAKS.items() if set(card.lower().split()) == words), None)
