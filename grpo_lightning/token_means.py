"""Figures of one optimizer step, exact over its micro-batches and ranks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from grpo_lightning import ranks
from grpo_lightning.errors import UserError
from grpo_lightning.functional.masking import masked_sum

Formula = Callable[..., "float | None"]
"""From sums over all micro-batches and ranks to a figure; None where there is nothing to say."""


class TokenMeans:
    """Adds up sums over micro-batches and divides once, over all ranks.

    A mean of the micro-batches' means would weigh a token by the size of its micro-batch. A figure of no token at all
    is left out: 0 would be mistaken for a measurement. Sums stay on their device until ``result``.
    """

    def __init__(self) -> None:
        self._sums: dict[str, list[Tensor]] = {}
        self._formulas: dict[str, Formula] = {}
        self._shares: set[str] = set()
        self._extremes: dict[tuple[str, str], Tensor] = {}

    def add(self, means: dict[str, Tensor], mask: Tensor, *, shares: dict[str, Tensor] | None = None) -> None:
        """Count one micro-batch.

        Args:
            means: figure of each token, by name, averaged over the tokens under ``mask``, each ``[B, T]``.
            mask: 1 where a token counts, ``[B, T]``.
            shares: figure of each token, by name, averaged over *all* trained tokens of the step: one that never got
                here, because its sequence was left out, counts as 0; each ``[B, T]``.
        """
        for name, values in means.items():
            self.add_mean(name, values, mask)
        for name, values in (shares or {}).items():
            self._shares.add(name)
            self.add_sums(name, quotient, masked_sum(values.detach().double(), mask))

    def add_mean(self, name: str, values: Tensor, mask: Tensor) -> None:
        """Count entries towards the mean ``name``: Σ values / Σ mask.

        Args:
            name: of the figure.
            values: of tokens, sequences or anything else.
            mask: 1 where a value counts, same shape.
        """
        self.add_sums(name, quotient, masked_sum(values.detach().double(), mask), mask.sum(dtype=torch.float64))

    def add_sums(self, name: str, formula: Formula, *sums: Tensor) -> None:
        """Keep ``sums``, scalars; ``name`` is ``formula`` of their totals over all micro-batches and ranks."""
        self._formulas[name] = formula
        new = [value.detach().double() for value in sums]
        kept = self._sums.get(name)
        self._sums[name] = new if kept is None else [a + b for a, b in zip(kept, new, strict=True)]

    def add_max(self, name: str, values: Tensor, mask: Tensor) -> None:
        """Keep the largest entry under ``mask`` as ``name``; arguments as in ``add_mean``."""
        self._add_extreme("max", name, values.detach().double(), mask)

    def add_min(self, name: str, values: Tensor, mask: Tensor) -> None:
        """Keep the smallest entry under ``mask`` as ``name``; arguments as in ``add_mean``."""
        self._add_extreme("min", name, -values.detach().double(), mask)

    def add_total(self, name: str, value: Tensor) -> None:
        """Add a scalar to the plain sum ``name``."""
        self.add_sums(name, float, value)

    def result(self, *, all_tokens: float = 0.0) -> dict[str, float]:
        """Every figure over all micro-batches and ranks.

        Args:
            all_tokens: trained tokens of the step over all ranks, those of left-out sequences included; for shares.

        Raises:
            UserError: if ranks added figures of different names, which cannot be summed.
        """
        names, extremes = sorted(self._sums), sorted(self._extremes)
        if not ranks.all_agree(repr((names, extremes))):
            raise UserError(
                "--model.objective: its metrics and shares must have the same names on every rank and in every step; "
                f"one rank has {', '.join(names)}, another has others"
            )
        flat = [value for name in names for value in self._sums[name]]
        totals = iter(ranks.all_sum(torch.stack(flat).cpu()).tolist() if flat else [])
        figures: dict[str, float | None] = {}
        for name in names:
            sums = [next(totals) for _ in self._sums[name]]
            figures[name] = self._formulas[name](*sums, *([all_tokens] if name in self._shares else []))
        if extremes:
            largest = ranks.all_max(torch.stack([self._extremes[key] for key in extremes]).cpu()).tolist()
            for (kind, name), value in zip(extremes, largest, strict=True):
                figures[name] = None if value == -torch.inf else value if kind == "max" else -value
        return {name: figure for name, figure in figures.items() if figure is not None}

    def _add_extreme(self, kind: str, name: str, values: Tensor, mask: Tensor) -> None:
        largest = torch.where(mask > 0, values, -torch.inf).max()
        self._extremes[kind, name] = torch.maximum(self._extremes.get((kind, name), largest), largest)


def quotient(numerator: float, denominator: float) -> float | None:
    """None where there is nothing to divide by."""
    return numerator / denominator if denominator else None
