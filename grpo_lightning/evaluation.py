"""Accuracy of a policy on held-out problems: torchmetrics metrics and a tally that add up over batches and ranks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import MeanMetric, Metric

from grpo_lightning import ranks
from grpo_lightning.data.source import PromptSource
from grpo_lightning.records import completion_record
from grpo_lightning.rewards.scoring.runner import RewardScorer
from grpo_lightning.types import Completion, Prompt

BREAKDOWNS = ("level", "subject")
"""Data columns by whose values accuracy is told too."""


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
        self.add_state("total", torch.zeros(()), dist_reduce_fx="sum")
        self.add_state("problems", torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")

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
        self.add_state("right", torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")
        self.add_state("problems", torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")

    def update(self, answers: Sequence[str | None], correct: Sequence[bool]) -> None:
        """Count one problem.

        Args:
            answers: the normalized answer of each sample, None where there is none.
            correct: verdict on each sample.
        """
        votes = Counter(answer for answer in answers if answer is not None)
        if votes:
            winner = votes.most_common(1)[0][0]
            self.right += int(correct[answers.index(winner)])
        self.problems += 1

    def compute(self) -> Tensor:
        return self.right / self.problems.clamp(min=1)


class Tally:
    """Verdicts on one source's problems.

    A problem whose gold answer the source's rule cannot read is nothing to be right or wrong about: it is counted in
    ``unreadable``, and in no figure.

    Args:
        source: says what is right.
        greedy: there is a greedy answer to each problem.
        samples: sampled answers to each problem (n).
        device: where the figures are summed; ranks exchange them there.
    """

    def __init__(self, source: PromptSource, *, greedy: bool, samples: int, device: torch.device | str = "cpu") -> None:
        self.source = source
        self._rule = RewardScorer([source.correctness])
        self.records: list[dict[str, Any]] = []
        """This rank's completions, with ``correct`` and ``greedy``."""
        self.problems = 0
        self.unreadable = 0
        self.parts: dict[str, list[float]] = {}
        """What each problem adds to the accuracy, by ``"level=3"`` and the like."""
        self.metrics: dict[str, Metric] = {"mean_length": MeanMetric(), "clipped_ratio": MeanMetric()}
        if greedy:
            self.metrics["accuracy"] = MeanMetric()
        for k in [1 << i for i in range(samples.bit_length())] if samples else []:
            self.metrics[f"pass@{k}"] = PassAtK(k)
        if samples > 1:
            self.metrics[f"maj@{samples}"] = MajorityAtK()
        for metric in self.metrics.values():
            metric.to(device)

    def add(
        self,
        prompts: Sequence[Prompt],
        greedy: Sequence[Sequence[Completion]],
        samples: Sequence[Sequence[Completion]],
        *,
        trainer_state: Any = None,
    ) -> None:
        """Count a batch of problems; those that only fill up a batch are passed over.

        Args:
            prompts: this rank's problems, ``[P]``.
            greedy: their greedy answers, ``[P][1 or 0]``.
            samples: their sampled answers, ``[P][n]``.
            trainer_state: handed to the source's rule.
        """
        asked = [
            (prompt, list(answers), list(drawn))
            for prompt, answers, drawn in zip(prompts, greedy, samples, strict=True)
            if prompt.valid
        ]
        groups = [[*answers, *drawn] for _, answers, drawn in asked]
        verdicts = judge(self._rule, [prompt for prompt, _, _ in asked], groups, trainer_state=trainer_state)
        for (prompt, answers, drawn), group in zip(asked, verdicts, strict=True):
            right = [verdict for verdict in group if verdict is not None]
            if len(right) < len(group):
                self.unreadable += 1
                continue
            self.problems += 1
            self._count(prompt, answers, drawn, right)
            for i, (completion, verdict) in enumerate(zip([*answers, *drawn], right, strict=True)):
                record = completion_record(prompt, completion)
                self.records.append({**record, "correct": verdict, "greedy": i < len(answers)})

    def _count(self, prompt: Prompt, answers: list[Completion], drawn: list[Completion], verdicts: list[bool]) -> None:
        right = verdicts[len(answers) :]
        for completion in answers or drawn:
            self.metrics["mean_length"].update(len(completion.token_ids))
            self.metrics["clipped_ratio"].update(float(not completion.finished))
        # As ``accuracy`` itself: of the greedy answer, or pass@1 of the samples where nothing was greedy.
        accuracy = float(verdicts[0]) if answers else sum(right) / len(right)
        if answers:
            self.metrics["accuracy"].update(accuracy)
        for name, metric in self.metrics.items():
            if name.startswith("pass@"):
                metric.update(right)
            elif name.startswith("maj@"):
                metric.update([self.source.extract_answer(prompt.prefill + c.text) for c in drawn], right)
        for column in BREAKDOWNS:
            value = prompt.columns.get(column)
            if value is not None:
                self.parts.setdefault(f"{column}={value}", []).append(accuracy)

    def result(self) -> dict[str, float]:
        """Figures over all ranks; ``accuracy`` is greedy, or pass@1 where nothing was greedy. NaN without problems."""
        self._rule.close()
        counts = ranks.gather_objects([(self.problems, self.unreadable)])
        problems, unreadable = (sum(of_rank) for of_rank in zip(*counts, strict=True))
        # Ranks agree on the number of problems, so that all or none of them come to the exchange in `compute`.
        figures = {name: float(metric.compute()) if problems else math.nan for name, metric in self.metrics.items()}
        figures.setdefault("accuracy", figures.get("pass@1", math.nan))
        figures["problems"] = float(problems)
        if unreadable:
            figures["unreadable_golds"] = float(unreadable)
        of_parts: dict[str, list[float]] = {}
        for part, accuracies in ranks.gather_objects(list(self.parts.items())):
            of_parts.setdefault(part, []).extend(accuracies)
        return figures | {f"{part}/accuracy": sum(a) / len(a) for part, a in sorted(of_parts.items())}


def judge(
    rule: RewardScorer,
    prompts: Sequence[Prompt],
    groups: Sequence[Sequence[Completion]],
    *,
    trainer_state: Any = None,
) -> list[list[bool | None]]:
    """Verdicts of a source's rule in one call, ``[P][G]``: right is what it gives more than 0; None if it gives none.

    Args:
        rule: calls a source's ``correctness``.
        prompts: problems, ``[P]``.
        groups: their completions, ``[P][G]``.
        trainer_state: handed to the rule.
    """
    if not any(groups):
        return [[] for _ in groups]
    scores = rule.score(prompts, groups, trainer_state=trainer_state)
    return [[None if math.isnan(score) else score > 0 for score in group] for group in scores.total]


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
    # The interval holds the share itself, also where rounding would push a bound of 0 or 1 past it.
    return max(0.0, min(share, (middle - half) / scale)), min(1.0, max(share, (middle + half) / scale))
