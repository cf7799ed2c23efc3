"""Dynamic sampling (DAPO, arXiv 2503.14476, section 3.2): go on sampling until enough groups have something to teach.

The data loader hands out the prompts of several tries at once; every rank makes the same number of tries, decided on
figures of all ranks, so that no rank waits for another. The groups that are kept are dealt out anew in the order of
their prompts: the result is the same on any number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grpo_lightning import ranks
from grpo_lightning.rewards.scoring.runner import Scores
from grpo_lightning.types import Completion, Prompt


@dataclass(kw_only=True)
class ScoredGroup:
    """One prompt's completions and what each reward said of them; ranks exchange these."""

    position: int
    """Of the prompt in the rollout's global batch."""
    prompt: Prompt
    completions: list[Completion]
    """``[G]``."""
    teaches: bool
    """True if one of its trained tokens gets an advantage other than 0 (``CreditAssignment.teaches``)."""
    terms: dict[str, list[float]]
    counted: dict[str, list[Any]]
    columns: dict[str, list[Any]]


class GroupPool:
    """Collects the groups of one rollout, try by try.

    Args:
        wanted: groups of the rollout over all ranks (P).
    """

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.groups: list[ScoredGroup] = []
        self.scores: list[Scores] = []

    def add(
        self,
        positions: Sequence[int],
        prompts: list[Prompt],
        completions: list[list[Completion]],
        scores: Scores,
        *,
        teaches: Tensor,
    ) -> None:
        """What one try brought on this rank; ``teaches`` says which groups are worth keeping, bool ``[P]``."""
        first = 0
        for p, (position, prompt, group) in enumerate(zip(positions, prompts, completions, strict=True)):
            columns = {name: values[first : first + len(group)] for name, values in scores.columns.items()}
            first += len(group)
            self.groups.append(
                ScoredGroup(
                    position=position,
                    prompt=prompt,
                    completions=group,
                    teaches=bool(teaches[p]),
                    terms={name: of_groups[p] for name, of_groups in scores.terms.items()},
                    counted={name: of_groups[p] for name, of_groups in scores.counted.items()},
                    columns=columns,
                )
            )
        self.scores.append(scores)

    @property
    def full(self) -> bool:
        """True, on every rank, as soon as the ranks together have enough groups that teach."""
        teaching = sum(group.teaches for group in self.groups)
        return int(ranks.all_sum(torch.tensor(teaching))) >= self.wanted

    def share(self) -> list[ScoredGroup]:
        """This rank's groups of the rollout: those that teach, in the order of their prompts, dealt to ranks in turn.

        If there are too few, the first of the others fill up: they add nothing to the gradient, but their tokens count.
        """
        everyone = ranks.gather_objects(self.groups)
        chosen = sorted(everyone, key=lambda group: (not group.teaches, group.position))[: self.wanted]
        chosen.sort(key=lambda group: group.position)
        return chosen[ranks.rank() :: ranks.world_size()]

    def scores_of(self, groups: Sequence[ScoredGroup]) -> Scores:
        """The scores of these groups, which may come from other ranks; counts and figures are of all tries."""
        metrics: dict[str, list[float]] = {}
        counts: dict[str, float] = {}
        for scores in self.scores:
            for name, values in scores.metrics.items():
                metrics.setdefault(name, []).extend(values)
            for name, value in scores.counts.items():
                counts[name] = counts.get(name, 0.0) + value
        first = self.scores[0]
        names = sorted({name for group in groups for name in group.columns})
        return Scores(
            combination=first.combination,
            weights=first.weights,
            terms={name: [group.terms[name] for group in groups] for name in first.terms},
            counted={name: [group.counted[name] for group in groups] for name in first.counted},
            metrics=metrics,
            counts=counts,
            columns={
                name: [v for group in groups for v in group.columns.get(name, [None] * len(group.completions))]
                for name in names
            },
        )
