"""What every sampler does with a request before and while it works on it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from tqdm import tqdm

from grpo_lightning.engines.base import Sampling
from grpo_lightning.errors import UserError


def completion_limits(
    prompts: list[list[int]], sampling: Sampling, *, group_size: int, seeds: list[int], max_length: int
) -> list[int]:
    """Longest completion of each prompt, in tokens: the sampling's own limit, or what room the prompt leaves.

    Raises:
        UserError: if a prompt is empty or leaves no room.
        ValueError: if the numbers of prompts and seeds differ, or a number is out of range.
    """
    if len(prompts) != len(seeds):
        raise ValueError(f"{len(prompts)} prompts came with {len(seeds)} seeds")
    if group_size < 1 or sampling.max_completion_length < 1:
        raise ValueError(f"group_size {group_size} and {sampling.max_completion_length=} must be at least 1")
    for number, prompt in enumerate(prompts):
        if not prompt:
            raise UserError(f"prompt {number} of the batch has no tokens; check the prompt template.")
        if len(prompt) >= max_length:
            raise UserError(
                f"prompt {number} of the batch has {len(prompt)} tokens and the sampler holds {max_length} for prompt "
                "and completion together; drop long prompts, or raise the longest sequence of the sampler."
            )
    return [min(sampling.max_completion_length, max_length - len(prompt)) for prompt in prompts]


def progress_bar() -> Callable[..., Any] | None:
    """Makes a ``tqdm`` that appears after two seconds and vanishes when done; None off a terminal or the first rank."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    if (distributed and torch.distributed.get_rank() != 0) or not sys.stderr.isatty():
        return None
    return partial(tqdm, delay=2, leave=False, dynamic_ncols=True)
