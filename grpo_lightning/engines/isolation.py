"""Keep a sampler from leaving traces in the process that it shares with the trainer."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import torch


@contextmanager
def preserved_randomness() -> Iterator[None]:
    """Leave the global generators of torch (CPU and CUDA), ``random`` and numpy as they were found.

    A run must draw the same dropout masks and data order whichever sampler it uses: vLLM seeds all of them when it
    starts, and moves torch's whenever it samples.
    """
    python, array, cpu = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        random.setstate(python)
        numpy.random.set_state(array)
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)


@contextmanager
def preserved_environment(keep: str) -> Iterator[None]:
    """Undo every change of the environment variables, except of those whose name begins with ``keep``."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in set(os.environ) | set(before):
            if name.startswith(keep) or os.environ.get(name) == before.get(name):
                continue
            if name in before:
                os.environ[name] = before[name]
            else:
                del os.environ[name]


@contextmanager
def preserved_process_group() -> Iterator[None]:
    """Keep the default process group alive while something tries to destroy it."""
    destroy = torch.distributed.destroy_process_group

    def destroy_subgroup(group: Any = None) -> None:
        if group is not None and group is not torch.distributed.group.WORLD:
            destroy(group)

    torch.distributed.destroy_process_group = destroy_subgroup
    try:
        yield
    finally:
        torch.distributed.destroy_process_group = destroy
