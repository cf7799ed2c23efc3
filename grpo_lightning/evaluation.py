"""Accuracy of a policy on held-out problems, as torchmetrics metrics that add up over batches and ranks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor
from torchmetrics import Metric


class PassAtK(Metric):
    """Chance that at least one of k samples is right, from n samples of which c are right (arXiv 2107.03374).

    The unbiased estimator 1 - C(n-c, k) / C(n, k), averaged over problems. (1 - (1 - c/n)^k is biased low.)

    Args:
        k: samples that may be looked at; at most the number of samples given to ``update``.
    """

    full_state_update = False
    total: Tensor
    problems: Tensor

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("problems", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, correct: Sequence[bool]) -> None:
        """Count one problem.

        Args:
            correct: verdict on each of its n samples.
        """
        n, c = len(correct), sum(correct)
        self.total += 1 - math.comb(n - c, self.k) / math.comb(n, self.k)
        self.problems += 1

    def compute(self) -> Tensor:
        return self.total / self.problems.clamp(min=1)


class MajorityAtK(Metric):
    """Share of problems whose most frequent answer is right ("self-consistency", arXiv 2203.11171).

    Samples without an answer have no vote; among equally frequent answers the first given wins.
    """

    full_state_update = False
    right: Tensor
    problems: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("right", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("problems", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, answers: Sequence[str | None], correct: Sequence[bool]) -> None:
        """Count one problem.

        Args:
            answers: the normalized answer of each sample, None where there is none.
            correct: verdict on each sample.
        """
        votes = Counter(answer for answer in answers if answer is not None)
        if votes:
            winner = votes.most_common(1)[0][0]
            self.right += float(correct[answers.index(winner)])
        self.problems += 1

    def compute(self) -> Tensor:
        return self.right / self.problems.clamp(min=1)


def wilson_interval(right: float, problems: float, *, z: float = 1.96) -> tuple[float, float]:
    """Wilson's score interval of a share (1927): honest also near 0 and 1, where ±z·σ leaves the unit interval.

    Args:
        right: successes.
        problems: trials.
        z: 1.96 for 95%.

    Returns:
        Lower and upper bound; (0, 1) without trials.
    """
    if problems <= 0:
        return 0.0, 1.0
    share = right / problems
    middle = share + z * z / (2 * problems)
    half = z * math.sqrt(share * (1 - share) / problems + z * z / (4 * problems**2))
    scale = 1 + z * z / problems
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)
