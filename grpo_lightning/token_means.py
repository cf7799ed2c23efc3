"""Figures averaged over the trained tokens of one optimizer step."""

from __future__ import annotations

import torch
from torch import Tensor

from grpo_lightning import ranks
from grpo_lightning.functional.masking import masked_sum


class TokenMeans:
    """Adds up sums and counts over micro-batches and divides once, over all ranks.

    A mean of the micro-batches' means would weigh a token by the size of its micro-batch.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._maxima: dict[str, Tensor] = {}
        self._tokens = torch.zeros((), dtype=torch.float64)

    def add(self, values: dict[str, Tensor], mask: Tensor) -> None:
        """Count one micro-batch.

        Args:
            values: figure of each token, by name, each ``[B, T]``.
            mask: 1 where a token counts, ``[B, T]``.
        """
        self._tokens = self._tokens + mask.sum(dtype=torch.float64).cpu()
        for name, value in values.items():
            total = masked_sum(value.detach().double(), mask).cpu()
            self._sums[name] = self._sums.get(name, torch.zeros_like(total)) + total

    def add_max(self, name: str, values: Tensor, mask: Tensor) -> None:
        """Keep the largest entry under ``mask`` (0 if there is none) as ``name``; arguments as in ``add``."""
        largest = torch.where(mask > 0, values.detach().double(), -torch.inf).max().cpu()
        self._maxima[name] = torch.maximum(self._maxima.get(name, largest), largest)

    def add_total(self, name: str, value: Tensor) -> None:
        """Add a scalar to the plain sum ``name`` (kept apart from the means)."""
        self._sums[f"+{name}"] = self._sums.get(f"+{name}", torch.zeros((), dtype=torch.float64)) + value.detach().cpu()

    def result(self) -> dict[str, float]:
        """Means, maxima and sums over all micro-batches and ranks; every rank must have added the same names."""
        names = sorted(self._sums)
        totals = ranks.all_sum(torch.stack([self._tokens, *(self._sums[name] for name in names)]))
        tokens = max(float(totals[0]), 1.0)
        figures = {
            name.removeprefix("+"): float(total) / (1.0 if name.startswith("+") else tokens)
            for name, total in zip(names, totals[1:], strict=True)
        }
        for name in sorted(self._maxima):
            largest = float(ranks.all_max(self._maxima[name]))
            figures[name] = 0.0 if largest == -torch.inf else largest
        return figures
