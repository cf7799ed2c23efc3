"""Has the reward functions called and adds up their scores.

A reward function is called once per rollout with keywords only, in TRL's form, and its result is checked before
anything is trained on it: a wrong length, a NaN or a string would otherwise surface as a strange curve hours later.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from grpo_lightning.errors import UserError
from grpo_lightning.rewards.marks import innermost
from grpo_lightning.rewards.scoring.calling import TRAINER_KEYWORDS, CallLog, RewardCaller, require
from grpo_lightning.rewards.scoring.combination import Combination, Gate, WeightSchedule
from grpo_lightning.rewards.scoring.results import checked_scores

if TYPE_CHECKING:  # types needs torch, which this floor does without
    from grpo_lightning.types import Completion, Prompt, RewardFunction, StepScores

ScoreT = TypeVar("ScoreT")


@dataclass(kw_only=True)
class Scores:
    """Rewards of one rollout; lists ``[P][G]`` in the order of the completions."""

    combination: Combination
    """How the rewards are put together."""
    weights: dict[str, float]
    """In effect in this rollout."""
    terms: dict[str, list[list[float]]]
    """Each reward's own scores, unweighted: NaN where it returned None, the mean where it scored steps."""
    counted: dict[str, list[list[float | StepScores]]]
    """The same, 0 where the reward's gate is shut, and with every step where it scored steps."""
    metrics: dict[str, list[float]] = field(default_factory=dict)
    """What the functions gave to ``log_metric``, of which the mean is taken over all ranks."""
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
        sizes = [len(group) for group in next(iter(self.terms.values()))]
        flat = {name: [_mean(score) for group in self.counted[name] for score in group] for name in names}
        return _grouped(self.combination.total(flat, self.weights) if flat else [math.nan] * sum(sizes), sizes)

    @property
    def stepwise(self) -> list[str]:
        """Names of the rewards that scored steps of a completion."""
        groups = {name: [score for group in scores for score in group] for name, scores in self.counted.items()}
        return [name for name, scores in groups.items() if any(isinstance(score, list) for score in scores)]


class RewardScorer:
    """Scores groups of completions with one or more reward functions.

    Args:
        rewards: functions in TRL's form; plain, ``async`` or objects with ``__call__``.
        reward_weights: one per reward, a number or a function of the optimizer steps done (``rewards.LinearWeight``);
            1 each by default.
        reward_gates: rewards that count only where another one has reached enough, by name:
            ``{soft_format: {reward: math_accuracy, at_least: 1.0}}``. Names are those of ``rewards/<name>/mean``.
        reward_clip: least and largest weighted sum of the rewards per completion; those per step are added to it.
        reward_time_limit: seconds for one call of a function with all completions of a rollout; see ``RewardCaller``.
        reward_on_timeout: score of a completion on which a function exceeds its limits.
        reward_memory_limit_gib: memory that a function may take.
    """

    def __init__(
        self,
        rewards: Sequence[RewardFunction],
        *,
        reward_weights: list[float | WeightSchedule] | None = None,
        reward_gates: dict[str, Gate] | None = None,
        reward_clip: tuple[float, float] | None = None,
        reward_time_limit: float = 60.0,
        reward_on_timeout: float = 0.0,
        reward_memory_limit_gib: float = 8.0,
    ) -> None:
        if not rewards:
            raise UserError("--rollout.rewards is empty: name at least one reward function")
        self.rewards = list(rewards)
        self.names = _distinct([_name(reward) for reward in rewards])
        self.combination = Combination(self.names, weights=reward_weights, gates=reward_gates, clip=reward_clip)
        self._caller = RewardCaller(
            self.rewards,
            self.names,
            time_limit=reward_time_limit,
            on_timeout=reward_on_timeout,
            memory_limit_gib=reward_memory_limit_gib,
        )

    def alone(self, name: str) -> RewardScorer:
        """A scorer of that one reward, unweighted, under the same limits, with the same worker."""
        index = self.names.index(name)
        scorer = RewardScorer(
            [self.rewards[index]],
            reward_time_limit=self._caller.time_limit,
            reward_on_timeout=self._caller.on_timeout,
            reward_memory_limit_gib=self._caller.memory_limit / (1 << 30),
        )
        scorer._caller.pools = [self._caller.pools[index]]
        return scorer

    def close(self) -> None:
        """End the functions' worker processes; the next ``score`` starts new ones."""
        self._caller.close()

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
            UserError: if a function needs a column that the data lacks, or returns what ``results`` refuses.
            RunStopped: if a function raises, with its name and the completion, or never scores within its limits.
        """
        sizes = [len(group) for group in completions]
        log = CallLog(sum(sizes))
        keywords = _keywords(prompts, completions)
        returned = self._caller.call(keywords | {"trainer_state": trainer_state}, log)
        lengths = [len(ids) for ids in keywords["completion_ids"]]
        checked = {
            name: checked_scores(name, result, lengths=lengths)
            for name, result in zip(self.names, returned, strict=True)
        }
        terms = {name: [_mean(score) for score in scores] for name, scores in checked.items()}
        shut = self.combination.shut(terms)
        counted = {name: _behind(scores, shut.get(name)) for name, scores in checked.items()}
        weights = self.combination.weights(getattr(trainer_state, "global_step", 0))
        metrics = log.metrics | {f"rewards/{name}/weight": [weights[name]] for name in self.combination.scheduled}
        metrics |= {f"rewards/{name}/gate_open": [float(not off) for off in where] for name, where in shut.items()}
        return Scores(
            combination=self.combination,
            terms={name: _grouped(scores, sizes) for name, scores in terms.items()},
            counted={name: _grouped(scores, sizes) for name, scores in counted.items()},
            weights=weights,
            metrics=metrics,
            counts=log.counts,
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


def _mean(score: float | StepScores) -> float:
    return sum(value for value, _ in score) / len(score) if isinstance(score, list) else score


def _behind(scores: list[float | StepScores], shut: list[bool] | None) -> list[float | StepScores]:
    """The scores, 0 where the gate is shut; what does not apply stays so."""
    if shut is None:
        return scores
    return [_nothing(score) if off else score for score, off in zip(scores, shut, strict=True)]


def _nothing(score: float | StepScores) -> float | StepScores:
    if isinstance(score, list):
        return [(0.0, end) for _, end in score]
    return score if math.isnan(score) else 0.0


def _grouped(flat: list[ScoreT], sizes: list[int]) -> list[list[ScoreT]]:
    rest = iter(flat)
    return [[next(rest) for _ in range(size)] for size in sizes]


def _name(reward: Any) -> str:
    reward = innermost(reward)
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
