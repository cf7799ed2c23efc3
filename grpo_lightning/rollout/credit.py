"""From scores to advantages, on the groups of all ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grpo_lightning import ranks
from grpo_lightning.advantages import AdvantageEstimator, decoupled, per_step
from grpo_lightning.rewards.scoring.runner import Scores
from grpo_lightning.types import Completion, StepScores


class CreditAssignment:
    """What each completion, or each of its tokens, gets for the scores of its group.

    A completion without a token can learn nothing, so it must not shift its siblings either: it counts as missing.

    Args:
        estimator: from rewards ``[P, G]`` to advantages ``[P, G]``.
        normalize_each: add up the advantages of each reward by itself (GDPO) instead of taking those of the sum.
    """

    def __init__(self, estimator: AdvantageEstimator, *, normalize_each: bool = False) -> None:
        self.estimator = estimator
        self.normalize_each = normalize_each

    def advantages(self, scores: Scores, completions: list[list[Completion]]) -> Tensor:
        """Advantages of this rank's completions.

        A reward per step adds advantages of its own (``advantages.per_step``), times its weight, to those of the
        rewards per completion.

        Args:
            scores: of this rank's completions.
            completions: this rank's groups, ``[P][G]``.

        Returns:
            float32, ``[P, G, 1]``, or ``[P, G, T]`` where a reward is per step.
        """
        empty = torch.tensor([[not c.token_ids for c in group] for group in completions])
        mine = slice(ranks.rank() * len(empty), (ranks.rank() + 1) * len(empty))
        # On another rank the same reward may have found no steps.
        stepwise = sorted(set(ranks.gather_objects(scores.stepwise)))
        plain = [name for name in scores.terms if name not in stepwise]
        if self.normalize_each and plain:
            of_completions = decoupled(
                [_everyone(scores.counted[name], empty) for name in plain],
                weights=[scores.weights[name] for name in plain],
                estimator=self.estimator,
            )
        else:
            of_completions = self.estimator(_everyone(scores.total_of(plain), empty))
        advantages = of_completions[mine].unsqueeze(2)
        for name in stepwise:
            of_tokens = self._of_steps(scores.counted[name], completions)
            advantages = advantages + scores.weights[name] * of_tokens[mine]
        return advantages.float()

    def _of_steps(self, scores: list[list[float | StepScores]], completions: list[list[Completion]]) -> Tensor:
        """Of the completions of all ranks, ``[P, G, T]``."""
        steps = [
            [_as_steps(score, last=len(completion.token_ids) - 1) for score, completion in zip(*rows, strict=True)]
            for rows in zip(scores, completions, strict=True)
        ]
        most = max(len(of_one) for group in steps for of_one in group)
        longest = max(len(c.token_ids) for group in completions for c in group)
        most, longest = (max(number, 1) for number in ranks.all_max(torch.tensor([most, longest])).tolist())
        rewards = torch.full((len(steps), len(steps[0]), most), torch.nan, dtype=torch.float64)
        ends = torch.zeros(rewards.shape, dtype=torch.long)
        for p, group in enumerate(steps):
            for g, of_one in enumerate(group):
                for n, (score, end) in enumerate(of_one):
                    rewards[p, g, n], ends[p, g, n] = score, end
        return per_step(
            ranks.gather_rows(rewards), ends=ranks.gather_rows(ends), estimator=self.estimator, length=longest
        )


def _as_steps(score: float | StepScores, *, last: int) -> StepScores:
    """A completion with one score has it at its last token; one without a score, or without a token, has no step."""
    if isinstance(score, list):
        return score
    return [] if math.isnan(score) or last < 0 else [(score, last)]


def _everyone(rewards: Sequence[Sequence[Any]], empty: Tensor) -> Tensor:
    """Of all ranks, NaN for completions without a token, float64 ``[P, G]``."""
    return ranks.gather_rows(torch.tensor(rewards, dtype=torch.float64).masked_fill(empty, torch.nan))
