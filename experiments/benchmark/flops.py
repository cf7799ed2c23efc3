"""How many floating-point operations a step of the benchmark needs."""

from __future__ import annotations

from collections.abc import Sequence

from grpo_lightning.models.flops import Group, Shape, forward_flops


def step_flops(shape: Shape, groups: Sequence[Group], *, reference: bool) -> dict[str, int]:
    """Of the training phases (a backward is two forwards, a reference pass one) and of generation."""
    forward = forward_flops(shape, groups)
    return {"train": (4 if reference else 3) * forward, "generate": forward}
