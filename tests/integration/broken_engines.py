"""Samplers with the faults that the alarm is there for."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from grpo_lightning.engines import TransformersEngine
from grpo_lightning.engines.base import Sampling
from grpo_lightning.types import Completion


class OtherWeights(TransformersEngine):
    """Samples from random weights, whatever it is sent."""

    def load_weights(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        generator = torch.Generator().manual_seed(5)
        super().load_weights((name, torch.randn(t.shape, generator=generator)) for name, t in tensors)


class NearbyWeights(TransformersEngine):
    """Samples from weights that are a little off, as one in low precision does."""

    def load_weights(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        noise = torch.Generator().manual_seed(5)
        super().load_weights((n, t + 0.3 * t.std() * torch.randn(t.shape, generator=noise)) for n, t in tensors)


class FirstWeights(TransformersEngine):
    """Keeps the weights of its first sync."""

    def load_weights(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        if not self._ready:
            super().load_weights([(name, t.clone()) for name, t in tensors])


class NoFigures(TransformersEngine):
    """Reports NaN for every log-probability."""

    def generate(
        self, prompts: list[list[int]], sampling: Sampling, *, group_size: int, seeds: list[int]
    ) -> list[list[Completion]]:
        groups = super().generate(prompts, sampling, group_size=group_size, seeds=seeds)
        for completion in (c for group in groups for c in group):
            completion.logprobs = [float("nan")] * len(completion.logprobs)
        return groups
