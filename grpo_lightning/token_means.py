"""Figures averaged over the trained tokens of one optimizer step."""

from __future__ import annotations

import torch
from torch import Tensor

from grpo_lightning import ranks
from grpo_lightning.errors import UserError
from grpo_lightning.functional.masking import masked_sum


class TokenMeans:
    """Adds up sums and counts over micro-batches and divides once, over all ranks.

    A mean of the micro-batches' means would weigh a token by the size of its micro-batch.
    """

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str], Tensor] = {}
        self._maxima: dict[str, Tensor] = {}
        self._tokens = torch.zeros((), dtype=torch.float64)

    def add(self, means: dict[str, Tensor], mask: Tensor, *, shares: dict[str, Tensor] | None = None) -> None:
        """Count one micro-batch.

        Args:
            means: figure of each token, by name, averaged over the tokens under ``mask``, each ``[B, T]``.
            mask: 1 where a token counts, ``[B, T]``.
            shares: figure of each token, by name, averaged over *all* trained tokens of the step: one that never got
                here, because its sequence was left out, counts as 0; each ``[B, T]``.
        """
        self._tokens = self._tokens + mask.sum(dtype=torch.float64).cpu()
        for kind, values in (("mean", means), ("share", shares or {})):
            for name, value in values.items():
                self._add(kind, name, masked_sum(value.detach().double(), mask))

    def add_max(self, name: str, values: Tensor, mask: Tensor) -> None:
        """Keep the largest entry under ``mask`` (0 if there is none) as ``name``; arguments as in ``add``."""
        largest = torch.where(mask > 0, values.detach().double(), -torch.inf).max().cpu()
        self._maxima[name] = torch.maximum(self._maxima.get(name, largest), largest)

    def add_total(self, name: str, value: Tensor) -> None:
        """Add a scalar to the plain sum ``name``."""
        self._add("total", name, value.detach().double())

    def result(self, *, all_tokens: float = 0.0) -> dict[str, float]:
        """Means, shares, sums and maxima over all micro-batches and ranks.

        Args:
            all_tokens: trained tokens of the step over all ranks, those of left-out sequences included; for shares.

        Raises:
            UserError: if ranks added figures of different names, which cannot be summed.
        """
        keys = sorted(self._sums)
        if not ranks.all_agree(repr((keys, sorted(self._maxima)))):
            raise UserError(
                "--model.objective: its metrics and shares must have the same names on every rank and in every step; "
                f"one rank has {', '.join(name for _, name in keys)}, another has others"
            )
        totals = ranks.all_sum(torch.stack([self._tokens, *(self._sums[key] for key in keys)]))
        divisor = {"mean": max(float(totals[0]), 1.0), "share": max(all_tokens, 1.0), "total": 1.0}
        figures = {name: float(sum_) / divisor[kind] for (kind, name), sum_ in zip(keys, totals[1:], strict=True)}
        for name in sorted(self._maxima):
            largest = float(ranks.all_max(self._maxima[name]))
            figures[name] = 0.0 if largest == -torch.inf else largest
        return figures

    def _add(self, kind: str, name: str, value: Tensor) -> None:
        value = value.cpu()
        self._sums[kind, name] = self._sums.get((kind, name), torch.zeros_like(value)) + value
