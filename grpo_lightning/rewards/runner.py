"""Has the reward functions called and adds up their scores.

A reward function is called once per rollout with keywords only, in TRL's form, and its result is checked before
anything is trained on it: a wrong length, a NaN or a string would otherwise surface as a strange curve hours later.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from grpo_lightning.errors import UserError
from grpo_lightning.rewards.calling import TRAINER_KEYWORDS, CallLog, RewardCaller, require

if TYPE_CHECKING:  # types needs torch, which this floor does without
    from grpo_lightning.types import Completion, Prompt, RewardFunction


@dataclass(kw_only=True)
class Scores:
    """Rewards of one rollout; lists ``[P][G]`` in the order of the completions."""

    combination: Combination
    """How they are put together."""
    terms: dict[str, list[list[float]]]
    """Each reward's own scores, unweighted; NaN where it returned None, the mean over the steps where it scored steps."""
    gated: dict[str, list[list[float]]]
    """The same, 0 where the reward's gate is shut."""
    weights: dict[str, float]
    """In effect in this rollout."""
    steps: dict[str, list[list[StepScores | None]]] = field(default_factory=dict)
    """Of the rewards that scored steps: score and last token of each step, 0 where the gate is shut."""
    metrics: dict[str, float] = field(default_factory=dict)
    """What the functions gave to ``log_metric``; the mean if one name was given several times."""
    counts: dict[str, float] = field(default_factory=dict)
    """What they gave to ``log_count``, to be added up over ranks."""
    columns: dict[str, list[Any]] = field(default_factory=dict)
    """What they gave to ``log_extra``, one entry per completion."""

    @property
    def total(self) -> list[list[float]]:
        """Weighted sum over the rewards that apply, within its bounds; NaN where none does."""
        return self.total_of(self.terms)

    def total_of(self, names: Iterable[str]) -> list[list[float]]:
        """``total`` over some of the rewards."""
        picked = {name: [score for group in self.gated[name] for score in group] for name in names}
        sizes = [len(group) for group in next(iter(self.terms.values()))]
        rows = self.combination.total(picked, self.weights) if picked else [math.nan] * sum(sizes)
        return _grouped(rows, sizes)

    def steps_of(self, name: str, completions: Sequence[Sequence[Completion]]) -> list[list[StepScores]]:
        """A reward's steps; a completion with one score has it at its last token, one without a score has no step."""
        steps = self.steps.get(name) or [[None] * len(group) for group in completions]
        return [
            [
                of_steps if of_steps is not None else [] if math.isnan(score) else [(score, len(completion.token_ids) - 1)]
                for of_steps, score, completion in zip(*rows, strict=True)
            ]
            for rows in zip(steps, self.gated[name], completions, strict=True)
        ]


class RewardScorer:
    """Scores groups of completions with one or more reward functions.

    Args:
        rewards: functions in TRL's form; plain, ``async`` or objects with ``__call__``.
        reward_weights: one per reward, a number or a function of the optimizer steps done (``rewards.LinearWeight``); 1 each by
            default.
        reward_gates: rewards that count only where another one has reached enough, by name:
            ``{soft_format: {reward: math_accuracy, at_least: 1.0}}``. Names are those of ``rewards/<name>/mean``.
        reward_clip: least and largest weighted sum.
    """

    def __init__(
        self,
        rewards: Sequence[RewardFunction],
        *,
        reward_weights: list[float | WeightSchedule] | None = None,
        reward_gates: dict[str, Gate] | None = None,
        reward_clip: tuple[float, float] | None = None,
    ) -> None:
        if not rewards:
            raise UserError("--rollout.rewards is empty: name at least one reward function")
        self.rewards = list(rewards)
        self.names = _distinct([_name(reward) for reward in rewards])
        self.combination = Combination(self.names, weights=reward_weights, gates=reward_gates, clip=reward_clip)
        self._caller = RewardCaller(self.rewards, self.names)

    def require_columns(self, columns: Iterable[str]) -> None:
        """Find before the first rollout what ``score`` would find after it.

        Args:
            columns: names that the data has.

        Raises:
            UserError: if a function needs another column.
        """
        for name, reward in zip(self.names, self.rewards, strict=True):
            require(name, reward, (*TRAINER_KEYWORDS, *columns))

    def score(
        self, prompts: Sequence[Prompt], completions: Sequence[Sequence[Completion]], *, trainer_state: Any = None
    ) -> Scores:
        """Scores of all completions.

        Args:
            prompts: this rank's prompts, ``[P]``.
            completions: their groups, ``[P][G]``.
            trainer_state: handed to the functions as it is; an object with ``global_step`` and the like.

        Raises:
            UserError: if a function needs a column that the data lacks or returns something else than one finite number
                or None per completion.
            RuntimeError: if a function raises; the message names it, and the row if the exception has one.
        """
        sizes = [len(group) for group in completions]
        log = CallLog(sum(sizes))
        keywords = _keywords(prompts, completions)
        returned = self._caller.call(keywords | {"trainer_state": trainer_state}, log)
        lengths = [len(ids) for ids in keywords["completion_ids"]]
        terms: dict[str, list[float]] = {}
        steps: dict[str, list[StepScores | None]] = {}
        for name, result in zip(self.names, returned, strict=True):
            scores = checked_scores(name, result, lengths)
            terms[name] = [step_mean(score) if isinstance(score, list) else score for score in scores]
            if any(isinstance(score, list) for score in scores):
                steps[name] = [score if isinstance(score, list) else None for score in scores]
        gated = self.combination.gated(terms)
        for name, of_completions in steps.items():
            shut = [term != behind for term, behind in zip(terms[name], gated[name], strict=True)]
            steps[name] = [
                [(0.0, end) for _, end in scores] if scores and off else scores
                for scores, off in zip(of_completions, shut, strict=True)
            ]
        weights = self.combination.weights(getattr(trainer_state, "global_step", 0))
        return Scores(
            combination=self.combination,
            terms={name: _grouped(scores, sizes) for name, scores in terms.items()},
            gated={name: _grouped(scores, sizes) for name, scores in gated.items()},
            weights=weights,
            steps={name: _grouped(scores, sizes) for name, scores in steps.items()},
            metrics=self._metrics(log, weights, terms, gated),
            columns=log.columns,
        )
def _keywords(prompts: Sequence[Prompt], completions: Sequence[Sequence[Completion]]) -> dict[str, Any]:
    """Prompts, completions and data columns, one entry per completion."""
    pairs = [(p, completion) for p, group in zip(prompts, completions, strict=True) for completion in group]
    texts = [prompt.prefill + completion.text for prompt, completion in pairs]
    columns = {name for prompt in prompts for name in prompt.columns}
    keywords: dict[str, Any] = {name: [prompt.columns.get(name) for prompt, _ in pairs] for name in sorted(columns)}
    keywords["prompts"] = [prompt.text if prompt.messages is None else prompt.messages for prompt, _ in pairs]
    keywords["completions"] = [
        text if prompt.messages is None else [{"role": "assistant", "content": text}]
        for (prompt, _), text in zip(pairs, texts, strict=True)
    ]
    keywords["completion_ids"] = [completion.token_ids for _, completion in pairs]
    return keywords


def _checked(name: str, result: Any, rows: int) -> list[float]:
    """The scores as floats, None as NaN."""
    if hasattr(result, "tolist"):  # a tensor or array
        result = result.tolist()
    if not isinstance(result, (list, tuple)):
        raise UserError(f"reward {name} returned {type(result).__name__}: return a list with one score per completion")
    if len(result) != rows:
        raise UserError(f"reward {name} returned {len(result)} scores for {rows} completions: return one for each")
    return [_checked_score(name, row, score) for row, score in enumerate(result)]


def _checked_score(name: str, row: int, score: Any) -> float:
    if score is None:
        return math.nan
    if hasattr(score, "item"):  # a tensor or array with one element
        score = score.item()
    if not isinstance(score, numbers.Real):
        raise UserError(
            f"reward {name} returned {score!r} for row {row}: return a number, or None if it does not apply"
        )
    if not math.isfinite(score):
        raise UserError(f"reward {name} returned {score} for row {row}: return a finite number, or None")
    return float(score)


def _weighted_sum(scores: Sequence[float], weights: Sequence[float]) -> float:
    present = [weight * score for weight, score in zip(weights, scores, strict=True) if not math.isnan(score)]
    return sum(present) if present else math.nan


def _grouped(flat: list[float], sizes: list[int]) -> list[list[float]]:
    rest = iter(flat)
    return [[next(rest) for _ in range(size)] for size in sizes]


def _name(reward: Any) -> str:
    return getattr(reward, "__name__", None) or type(reward).__name__


def _distinct(names: list[str]) -> list[str]:
    """The names, later ones of the same name with ``_2``, ``_3`` and so on."""
    taken: list[str] = []
    for name in names:
        count, candidate = 1, name
        while candidate in taken:
            count += 1
            candidate = f"{name}_{count}"
        taken.append(candidate)
    return taken
