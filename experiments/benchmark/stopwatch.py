"""Seconds by phase, tokens and memory of a training run, taken from outside."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch import nn

PHASES = ("generate", "sync", "score", "reward", "forward", "backward", "optimizer")
"""Of a step; what is left of its time is ``glue``."""
MIB = 2**20


class Stopwatch:
    """Adds up phases and counts until a step is over. Phases do not lie inside each other.

    ``processor`` are the seconds that all threads computed: well below step times threads, the machine was not quiet.
    """

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self._figures: dict[str, float] = defaultdict(float)
        self.restart()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Everything inside belongs to the phase ``name``."""
        start = now()
        try:
            yield
        finally:
            self._figures[name] += now() - start

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, whose time is the phase's."""

        @wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            with self.phase(name):
                return function(*arguments, **keywords)

        return call

    def count(self, name: str, number: float) -> None:
        """Add to a figure that is no time."""
        self._figures[name] += number

    def restart(self) -> None:
        """What was measured so far belongs to no step."""
        self._figures.clear()
        self._began, self._processor = now(), time.process_time()

    def end_step(self) -> None:
        """A step is over, and the next one begins."""
        end, processor = now(), time.process_time()
        self.count("processor", processor - self._processor)
        self.steps.append(step_figures(dict(self._figures), seconds=end - self._began))
        self._figures.clear()
        self._began, self._processor = end, processor

    def count_tokens(self, decoder: nn.Module) -> None:
        """Count the tokens that go through ``decoder`` with gradient, and how many of them are padding."""

        def look(_: nn.Module, __: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            if not torch.is_grad_enabled():
                return
            ids, mask = keywords["input_ids"], keywords.get("attention_mask")
            self.count("computed_tokens", ids.numel())
            if mask is not None and mask.shape == ids.shape:  # any other says who sees whom in a packed row
                self.count("padding_tokens", ids.numel() - int(mask.sum()))

        decoder.register_forward_pre_hook(look, with_kwargs=True)


def step_figures(figures: dict[str, float], *, seconds: float) -> dict[str, float]:
    """A step's figures with every phase, its whole time and the glue: what no phase explains."""
    phases = {name: figures.pop(name, 0.0) for name in PHASES}
    return {"step": seconds, **phases, "glue": seconds - sum(phases.values()), **figures}


def now() -> float:
    """Seconds, when all that was asked of a GPU is done."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


class Memory:
    """Peak memory from ``start`` on, above what the process held then; on a GPU that of its allocator besides."""

    def __init__(self) -> None:
        self._loaded = self._before = self._loaded_cuda = 0.0

    def start(self) -> None:
        """Models are loaded and the sampler runs: from here on counts."""
        self._before = status("VmHWM")
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets VmHWM
        self._loaded = status("VmRSS")
        if torch.cuda.is_initialized():
            self._loaded_cuda = torch.cuda.memory_allocated() / MIB
            torch.cuda.reset_peak_memory_stats()

    def result(self) -> dict[str, float]:
        """MiB."""
        peak = status("VmHWM")
        found = {"loaded": self._loaded, "above_load": peak - self._loaded, "peak": max(peak, self._before)}
        if torch.cuda.is_initialized():
            cuda = torch.cuda.max_memory_allocated() / MIB
            found |= {"cuda_loaded": self._loaded_cuda, "cuda_above_load": cuda - self._loaded_cuda, "cuda_peak": cuda}
        return {name: round(value, 1) for name, value in found.items()}


def status(name: str) -> float:
    """A line of this process's /proc/self/status, MiB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))
