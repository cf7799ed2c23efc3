"""Figures averaged over the trained tokens of one optimizer step."""

from __future__ import annotations

from collections.abc import Callable

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
        self._extremes: dict[tuple[str, str], Tensor] = {}
        self._formulas: dict[str, tuple[Callable[..., float], int]] = {}
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

    def add_mean(self, name: str, values: Tensor, mask: Tensor) -> None:
        """Count entries towards the mean ``name``, which has a denominator of its own: Σ mask (0 if that is 0).

        Args:
            name: of the figure.
            values: of tokens, sequences or anything else.
            mask: 1 where a value counts, same shape.
        """
        self.add_sums(name, quotient, masked_sum(values.detach().double(), mask), mask.sum(dtype=torch.float64))

    def add_sums(self, name: str, formula: Callable[..., float], *sums: Tensor) -> None:
        """Keep ``sums``, scalars; ``name`` is ``formula`` of their totals over all micro-batches and ranks."""
        self._formulas[name] = formula, len(sums)
        for number, value in enumerate(sums):
            self._add(f"sum {number}", name, value.detach().double())

    def add_max(self, name: str, values: Tensor, mask: Tensor) -> None:
        """Keep the largest entry under ``mask`` (0 if there is none) as ``name``; arguments as in ``add_mean``."""
        self._add_extreme("max", name, values.detach().double(), mask)

    def add_min(self, name: str, values: Tensor, mask: Tensor) -> None:
        """Keep the smallest entry under ``mask`` (0 if there is none) as ``name``; arguments as in ``add_mean``."""
        self._add_extreme("min", name, -values.detach().double(), mask)

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
        keys, extremes = sorted(self._sums), sorted(self._extremes)
        if not ranks.all_agree(repr((keys, extremes))):
            raise UserError(
                "--model.objective: its metrics and shares must have the same names on every rank and in every step; "
                f"one rank has {', '.join(sorted({name for _, name in keys}))}, another has others"
            )
        sums = ranks.all_sum(torch.stack([self._tokens, *(self._sums[key] for key in keys)])).tolist()
        totals = dict(zip(keys, sums[1:], strict=True))
        divisor = {"mean": max(sums[0], 1.0), "share": max(all_tokens, 1.0), "total": 1.0}
        figures = {name: total / divisor[kind] for (kind, name), total in totals.items() if kind in divisor}
        for name, (formula, count) in self._formulas.items():
            figures[name] = formula(*(totals[f"sum {number}", name] for number in range(count)))
        if extremes:
            largest = ranks.all_max(torch.stack([self._extremes[key] for key in extremes])).tolist()
            for (kind, name), value in zip(extremes, largest, strict=True):
                figures[name] = 0.0 if value == -torch.inf else value if kind == "max" else -value
        return figures

    def _add(self, kind: str, name: str, value: Tensor) -> None:
        value = value.cpu()
        self._sums[kind, name] = self._sums.get((kind, name), torch.zeros_like(value)) + value

    def _add_extreme(self, kind: str, name: str, values: Tensor, mask: Tensor) -> None:
        largest = torch.where(mask > 0, values, -torch.inf).max().cpu()
        self._extremes[kind, name] = torch.maximum(self._extremes.get((kind, name), largest), largest)


def quotient(numerator: float, denominator: float) -> float:
    """0 where there is nothing to divide by."""
    return numerator / denominator if denominator else 0.0
