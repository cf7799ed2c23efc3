"""From scores to advantages, on the groups of all ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from grpo_lightning import ranks
from grpo_lightning.advantages import (
    AdvantageEstimator,
    TokenCredit,
    TokenEstimator,
    decoupled,
    per_step,
)
from grpo_lightning.errors import UserError
from grpo_lightning.rewards.scoring.runner import Scores
from grpo_lightning.types import Completion, StepScores


class CreditAssignment:
    """What each completion, or each of its tokens, gets for the scores of its group.

    A completion without a token can learn nothing, so it must not shift its siblings either: it counts as missing.

    Args:
        estimator: from rewards ``[P, G]`` to advantages ``[P, G]``, or a ``TokenEstimator``.
        normalize_each: add up the advantages of each reward by itself (GDPO) instead of taking those of the sum.
    """

    def __init__(self, estimator: AdvantageEstimator | TokenEstimator, *, normalize_each: bool = False) -> None:
        self.estimator = estimator if isinstance(estimator, TokenEstimator) else _checked(estimator)
        self.normalize_each = normalize_each

    def assign(
        self,
        scores: Scores,
        completions: list[list[Completion]],
        *,
        mask: Tensor,
        penalty: Tensor | None = None,
        values: Tensor | None = None,
    ) -> TokenCredit:
        """Advantages of this rank's completions.

        A function of whole rewards gets each completion's total less the sum of its penalties; a reward per step adds
        advantages of its own (``advantages.per_step``), times its weight. A ``TokenEstimator`` gets all of it laid out
        on the tokens.

        Args:
            scores: of this rank's completions.
            completions: this rank's groups, ``[P][G]``.
            mask: 1 on their trained tokens, ``[P, G, T]``.
            penalty: taken off the reward of each token, float64 ``[P, G, T]``.
            values: the critic's, float64 ``[P, G, T]``.

        Returns:
            float32, advantages ``[P, G, 1]``, or ``[P, G, T]`` where they differ by token.
        """
        # On another rank the same reward may have found no steps.
        stepwise = sorted(set(ranks.gather_objects(scores.stepwise)))
        if isinstance(self.estimator, TokenEstimator):
            return self._of_tokens(self.estimator, scores, completions, stepwise, mask, penalty, values)
        advantages = self._of_completions(self.estimator, scores, completions, stepwise, penalty)
        for name in stepwise:
            of_tokens = self._of_steps(self.estimator, scores.counted[name], completions)
            advantages = advantages + scores.weights[name] * _mine(of_tokens, len(completions))
        return TokenCredit(advantages=advantages.float())

    def teaches(self, scores: Scores, completions: list[list[Completion]], *, mask_truncated: bool = False) -> Tensor:
        """True for a group that has a gradient: one of its trained tokens gets an advantage other than 0, bool ``[P]``.

        The advantages are those of one try; whether one is 0 depends on the rewards of its group alone. Every rank has
        to call it with its own groups.

        Args:
            scores: of this rank's completions.
            completions: this rank's groups, ``[P][G]``.
            mask_truncated: what the length limit cut is not trained on.
        """
        assert not isinstance(self.estimator, TokenEstimator), "a group that teaches needs an estimator of groups"
        trained = torch.tensor(
            [[bool(c.token_ids) and (c.finished or not mask_truncated) for c in g] for g in completions]
        )
        advantages = self.assign(scores, completions, mask=trained.unsqueeze(2)).advantages
        return ((advantages != 0).any(dim=2) & trained).any(dim=1)

    def _of_completions(
        self,
        estimator: AdvantageEstimator,
        scores: Scores,
        completions: list[list[Completion]],
        stepwise: list[str],
        penalty: Tensor | None,
    ) -> Tensor:
        """``[P, G, 1]``."""
        plain = [name for name in scores.terms if name not in stepwise]
        if self.normalize_each and plain:
            of_all = decoupled(
                [ranks.gather_rows(_known(scores.counted[name], completions)) for name in plain],
                weights=[scores.weights[name] for name in plain],
                estimator=estimator,
            )
        else:
            totals = _known(scores.total_of(plain), completions)
            if penalty is not None:
                if not plain:  # every reward is per step, and the penalty stands alone
                    totals = _known([[0.0] * len(group) for group in completions], completions)
                totals = totals - penalty.sum(dim=2)
            of_all = estimator(ranks.gather_rows(totals))
        return _mine(of_all, len(completions)).unsqueeze(2)

    def _of_steps(
        self,
        estimator: AdvantageEstimator,
        scores: list[list[float | StepScores]],
        completions: list[list[Completion]],
    ) -> Tensor:
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
        return per_step(ranks.gather_rows(rewards), ends=ranks.gather_rows(ends), estimator=estimator, length=longest)

    def _of_tokens(
        self,
        estimator: TokenEstimator,
        scores: Scores,
        completions: list[list[Completion]],
        stepwise: list[str],
        mask: Tensor,
        penalty: Tensor | None,
        values: Tensor | None,
    ) -> TokenCredit:
        totals = _known(scores.total_of([name for name in scores.terms if name not in stepwise]), completions)
        known = ~totals.isnan()
        rewards = torch.zeros(mask.shape, dtype=torch.float64)
        last = torch.tensor([[max(len(c.token_ids) - 1, 0) for c in group] for group in completions])
        rewards.scatter_(2, last.unsqueeze(2), totals.nan_to_num(0.0).unsqueeze(2))
        for name in stepwise:
            for p, group in enumerate(completions):
                for g, completion in enumerate(group):
                    for score, end in _as_steps(scores.counted[name][p][g], last=len(completion.token_ids) - 1):
                        rewards[p, g, end] += scores.weights[name] * score
                        known[p, g] = True
        if penalty is not None:
            rewards = rewards - penalty
        everyone = _over_ranks(mask.shape[2])
        of_all = everyone(mask.double() * known.unsqueeze(2))
        credit = estimator(everyone(rewards), mask=of_all, values=None if values is None else everyone(values))
        _require(getattr(credit, "advantages", credit), of_all.shape, estimator)
        if values is not None and (credit.returns is None or credit.returns.shape != of_all.shape):
            raise UserError(
                f"--rollout.advantages {type(estimator).__name__} returned no target for each of the critic's values: "
                f"return TokenCredit with returns {list(of_all.shape)}"
            )
        rows, columns = len(completions), mask.shape[2]
        returns = None
        if credit.returns is not None and values is not None:
            # A completion without a known reward teaches the critic nothing.
            returns = torch.where(known.unsqueeze(2), _mine(credit.returns, rows)[..., :columns], torch.nan).float()
        return TokenCredit(advantages=_mine(credit.advantages, rows)[..., :columns].float(), returns=returns)


def _checked(estimator: AdvantageEstimator) -> AdvantageEstimator:
    """The estimator, with a look at what it returns: it may be the user's own."""

    def checked(rewards: Tensor) -> Tensor:
        advantages = estimator(rewards)
        _require(advantages, rewards.shape, estimator)
        return advantages

    return checked


def _require(advantages: Any, shape: torch.Size, estimator: Any) -> None:
    """Refuse what nothing could be learned from."""
    name = getattr(estimator, "__name__", type(estimator).__name__)
    if not isinstance(advantages, Tensor) or advantages.shape != shape:
        given = list(advantages.shape) if isinstance(advantages, Tensor) else type(advantages).__name__
        raise UserError(
            f"--rollout.advantages {name} returned {given} for rewards {list(shape)}: return a tensor of the same shape"
        )
    if not advantages.isfinite().all():
        raise UserError(
            f"--rollout.advantages {name} returned NaN or infinite advantages: a missing reward is NaN and must get 0, "
            "and a critic that has diverged (--model.critic_lr) says NaN too"
        )


def _known(rewards: Sequence[Sequence[Any]], completions: list[list[Completion]]) -> Tensor:
    """NaN for completions without a token, float64 ``[P, G]``."""
    empty = torch.tensor([[not c.token_ids for c in group] for group in completions])
    return torch.tensor(rewards, dtype=torch.float64).masked_fill(empty, torch.nan)


def _mine(of_all: Tensor, rows: int) -> Tensor:
    """This rank's prompts of those of all ranks; every rank has as many."""
    return of_all[ranks.rank() * rows : (ranks.rank() + 1) * rows]


def _over_ranks(length: int) -> Callable[[Tensor], Tensor]:
    """Gathers tensors ``[P, G, T]`` of ranks whose longest completions differ, padded with zeros."""
    longest = int(ranks.all_max(torch.tensor(length)))
    return lambda figures: ranks.gather_rows(torch.nn.functional.pad(figures, (0, longest - length)))


def _as_steps(score: float | StepScores, *, last: int) -> StepScores:
    """A completion with one score has it at its last token; one without a score, or without a token, has no step."""
    if isinstance(score, list):
        return score
    return [] if math.isnan(score) or last < 0 else [(score, last)]
