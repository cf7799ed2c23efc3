"""Seconds and bytes of a call on a GPU; on a CPU, where it is only tried out, no bytes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch


class Meter:
    """Times calls on one device.

    Args:
        device: ``cuda`` or ``cpu``.
    """

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self.on_gpu = device == "cuda"

    def name(self) -> str:
        return torch.cuda.get_device_name() if self.on_gpu else "cpu"

    def wait(self) -> None:
        """For the device to finish."""
        if self.on_gpu:
            torch.cuda.synchronize()

    def free(self) -> None:
        """What the allocator keeps but nothing uses."""
        if self.on_gpu:
            torch.cuda.empty_cache()

    def seconds(self, call: Callable[[], Any], *, repeats: int = 5, inner: int = 1) -> float:
        """Median of ``repeats`` runs of ``inner`` calls each, by call, after one that warms up."""
        call()
        taken = []
        for _ in range(repeats):
            self.wait()
            start = time.perf_counter()
            for _ in range(inner):
                call()
            self.wait()
            taken.append((time.perf_counter() - start) / inner)
        return statistics.median(taken)

    def peak(self, call: Callable[[], Any]) -> dict[str, int | None]:
        """Bytes above what was there before: at the peak of ``call``, and what it leaves while its result lives."""
        if not self.on_gpu:
            call()
            return {"peak": None, "left": None}
        self.wait()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        kept = call()
        self.wait()
        peak, left = torch.cuda.max_memory_allocated() - before, torch.cuda.memory_allocated() - before
        del kept
        return {"peak": peak, "left": left}

    def if_it_fits(self, call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What ``call`` returns; where the card's memory is too small for it, the error."""
        try:
            return call()
        except torch.OutOfMemoryError as error:
            return {"error": str(error).split(". ")[0]}
