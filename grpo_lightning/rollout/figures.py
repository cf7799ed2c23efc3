"""Figures of one rollout over all ranks, in TRL's names."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from grpo_lightning import ranks
from grpo_lightning.advantages import group_std, zero_spread
from grpo_lightning.types import Completion


def reward_figures(rewards: Tensor, terms: dict[str, Tensor]) -> dict[str, float]:
    """Of total rewards ``[P, G]`` and of each reward by itself."""
    everyone = ranks.gather_rows(rewards)
    metrics = {"reward": float(everyone.nanmean().nan_to_num())}
    if everyone.shape[1] > 1:
        metrics["reward_std"] = float(group_std(everyone).mean())
        metrics["frac_reward_zero_std"] = float(zero_spread(everyone).double().mean())
    for name, term in terms.items():
        known = ranks.gather_rows(term).flatten()
        known = known[~known.isnan()]
        metrics[f"rewards/{name}/mean"] = float(known.mean()) if len(known) else 0.0
        metrics[f"rewards/{name}/std"] = float(known.std()) if len(known) > 1 else 0.0
    return metrics


def length_figures(completions: list[list[Completion]]) -> dict[str, float]:
    """Of completion lengths, in tokens."""
    rows = torch.tensor([[len(c.token_ids), c.finished] for group in completions for c in group], dtype=torch.float64)
    length, finished = ranks.gather_rows(rows).unbind(dim=1)
    ended = length[finished > 0]
    metrics = {"completions/clipped_ratio": 1 - float(finished.mean())}
    for name, of in (("", length), ("terminated_", ended)):
        for statistic in ("mean", "min", "max"):
            value = float(getattr(of, statistic)()) if len(of) else 0.0
            metrics[f"completions/{statistic}_{name}length"] = value
    return metrics


def dropped_figures(keep: Tensor | None) -> dict[str, float]:
    """Share of completions left out of the backward, from those that are kept, bool ``[B]``; None keeps all."""
    share = 0.0 if keep is None else float(ranks.gather_rows((~keep).double()).mean())
    return {"rollout/frac_dropped_sequences": share}


def mean_over_ranks(metrics: dict[str, list[float]]) -> dict[str, float]:
    """Figures that reward functions logged: the mean of all numbers, of whichever rank, so that each counts once."""
    everyone = ranks.gather_objects([{name: (sum(values), len(values)) for name, values in metrics.items()}])
    names = sorted({name for of_rank in everyone for name in of_rank}, key=str)
    totals = {name: [of_rank[name] for of_rank in everyone if name in of_rank] for name in names}
    counts = {name: sum(count for _, count in found) for name, found in totals.items()}
    return {name: sum(total for total, _ in totals[name]) / count for name, count in counts.items() if count}


def sum_over_ranks(counts: dict[str, float]) -> dict[str, float]:
    """Counts that reward functions logged."""
    everyone = ranks.gather_objects([counts])
    names = sorted({name for of_rank in everyone for name in of_rank}, key=str)
    return {name: sum(of_rank.get(name, 0.0) for of_rank in everyone) for name in names}


class Clock:
    """Seconds spent in each phase; the slowest rank's, since the others wait for it.

    Args:
        began: is told the name of each phase as it begins.
    """

    def __init__(self, *, began: Callable[[str], None] | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self._began = began

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        if self._began is not None:
            self._began(phase)
        start = now()
        yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now() - start

    def metrics(self) -> dict[str, float]:
        slowest = ranks.all_max(torch.tensor(list(self.seconds.values()), dtype=torch.float64)).tolist()
        return {f"time/{phase}": seconds for phase, seconds in zip(self.seconds, slowest, strict=True)}


def now() -> float:
    """Seconds, when all that was asked of a GPU is done: else a phase would be charged with what the last one left."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()
