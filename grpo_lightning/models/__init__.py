"""Policies: loading, adapters, sharding, scoring, clipping, weights for the sampler, export."""

from grpo_lightning.models.adapters import LoRA

__all__ = ["LoRA"]
