"""How many floating-point operations a step needs, and how many the machine does in a second."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


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
    def of(cls, config: Any) -> Shape:
        """From a transformers configuration."""
        text = config.get_text_config()
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


def step_flops(shape: Shape, groups: Sequence[Group], *, reference: bool) -> dict[str, int]:
    """Of the training phases (a backward is two forwards, a reference pass one) and of generation."""
    forward = forward_flops(shape, groups)
    return {"train": (4 if reference else 3) * forward, "generate": forward}


def matmul_rate(dtype: torch.dtype, *, device: str, size: int = 2048, repeats: int = 9) -> float:
    """Operations per second in the product of two square matrices: the median of some, after a first one."""
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        left @ right
        if device != "cpu":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / statistics.median(seconds[1:])
