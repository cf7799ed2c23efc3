"""The start-up check: does a right answer earn what the reward pays for right answers?

Each gold answer is laid out as the prompt asks for it and handed to the correctness rewards as if a model had written
it. Where it does not earn the most that the reward gives, reward and data do not fit: the answers cannot be read, or
the layout that the prompt asks for is not the one that the reward looks for. A run would train on zeros and nobody
would know, so it does not start.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from transformers import PreTrainedTokenizerBase

from grpo_lightning import ranks
from grpo_lightning.callbacks.right_replies import WORK, Reply, as_completion, right_replies
from grpo_lightning.data.answer_formats import AnswerFormat
from grpo_lightning.data.datamodule import PromptDataModule
from grpo_lightning.errors import UserError
from grpo_lightning.rewards.marks import marked
from grpo_lightning.rewards.scoring.runner import RewardScorer, Scores
from grpo_lightning.types import Prompt

log = logging.getLogger(__name__)

ENOUGH = 0.99
"""Share of golds that must earn the reward's best."""
MOST_SOLUTIONS = 200
"""Rows whose solution is checked: each may be a program that is run."""
CALL_ROWS = 64
"""Rows of one call, so that a reward's time limit is not spent on a whole data set."""
NAMED_IN_ERROR, NAMED_IN_WARNING = 5, 20
ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A gold answer that did not earn the best score."""

    row: int
    """In the data source."""
    gold: str
    score: float
    """The highest over the layouts that were tried; NaN if the reward gave none to any of them."""

    def __str__(self) -> str:
        gold = repr(self.gold if len(self.gold) <= 40 else f"{self.gold[:40]}...")
        return f"row {self.row} {gold} ({'unreadable' if math.isnan(self.score) else f'{self.score:g}'})"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What was looked at."""

    source: str
    rows: int
    """To be looked at, over all ranks."""
    checked: int
    """Looked at before the verdict stood."""
    elsewhere: int
    """Of these, rows to which the reward does not apply."""


def gold_checks(
    data: PromptDataModule, scorer: RewardScorer, *, most: int, evaluates: bool, trainer_state: Any = None
) -> Iterator[Callable[[], None]]:
    """Of every correctness reward on the golds that it will judge; see ``GoldCheck.check``, which each of them calls.

    Args:
        data: set up, with its tokenizer.
        scorer: of the training prompts' completions.
        most: rows looked at for each reward, spread evenly; 0 for none.
        evaluates: the rules of the evaluation sources will be used too.
        trainer_state: handed to the rewards.
    """
    answer_format = data.template.answer_format
    check = GoldCheck(answer_format, tokenizer=data.tokenizer, most=most, trainer_state=trainer_state)
    for name, reward in zip(scorer.names, scorer.rewards, strict=True):
        if marked(reward, "best") is not None:
            what = f"--rollout.rewards {name}"
            yield partial(check.check, scorer.alone(name), data.train_prompts or [], what=what)
    for source, prompts in zip(data.eval_sources, data.eval_prompts or [], strict=False) if evaluates else []:
        with closing(RewardScorer([source.correctness])) as rule:
            yield partial(check.check, rule, prompts, what=f"--data.eval_sources {source.name}, {rule.names[0]}")


class GoldCheck:
    """Refuses data of which more than 1% of the golds do not earn a reward's best, and warns of the others by row.

    The golds are the rows' ``answer``, of which the reward's ``gold_reader`` (``rewards.gold_reader``) takes what a
    right reply gives. A reward that does not name this column, as one that runs unit tests, is given the rows'
    ``solution`` too, plain and as a block of code. One layout that earns the best is enough. Rows are shared out over
    the ranks, which come to the same verdict together.

    None says that a reward does not apply to a row: in mixed data such rows count neither as right nor as wrong, unless
    the reward counts them as ``unreadable_golds`` (``log_count``) or applies to no row at all.

    Args:
        answer_format: the layout that the prompts ask for.
        tokenizer: the policy's.
        most: rows looked at, spread evenly over all; 0 for none.
        trainer_state: handed to the rewards.
    """

    def __init__(
        self, answer_format: AnswerFormat, *, tokenizer: PreTrainedTokenizerBase, most: int, trainer_state: Any = None
    ) -> None:
        self.answer_format = answer_format
        self.tokenizer = tokenizer
        self.most = most
        self.trainer_state = trainer_state

    def check(self, scorer: RewardScorer, prompts: Sequence[Prompt], *, what: str) -> None:
        """Look at one reward and one data set.

        Args:
            scorer: of one reward, which is passed over if it is not marked with ``rewards.best``.
            prompts: of one source, the same on all ranks.
            what: option and name of the reward, for messages: ``"--rollout.rewards math_accuracy"``.

        Raises:
            UserError: naming reward, share and rows.
        """
        (reward,) = scorer.rewards
        best = marked(reward, "best")
        if best is None or not self.most or not prompts:
            return
        column, most = "answer", self.most
        if column not in inspect.signature(reward).parameters:
            column, most = "solution", min(most, MOST_SOLUTIONS)
            prompts = [prompt for prompt in prompts if prompt.columns.get(column)]
        if not prompts:
            log.info("%s: not tried on right answers, since no row has a 'solution' to try it on", what)
            return
        chosen = spread(prompts, most)
        read = getattr(reward, "gold_reader", str)
        checked, elsewhere, refused = 0, 0, []
        order: list[int] = []
        layouts = Counter[str]()
        mine = chosen[ranks.rank() :: ranks.world_size()]
        for start in range(0, len(mine), CALL_ROWS):
            some = mine[start : start + CALL_ROWS]
            checked += len(some)
            replies = [right_replies(prompt, self.answer_format, column=column, read=read) for prompt in some]
            scores = self._scores(scorer, some, replies, best, order, layouts)
            unreadable = self._unreadable(scorer, some, replies, scores)
            for row, (prompt, score) in enumerate(zip(some, scores, strict=True)):
                if math.isnan(score) and row not in unreadable:
                    elsewhere += 1
                elif not score >= best - ROUNDING:
                    refused.append(Refused(row=prompt.row, gold=str(prompt.columns.get(column)), score=score))
            if len(refused) > _allowed(len(chosen)):  # the verdict stands, and the rest may take long
                break
        counted = ranks.gather_objects([(checked, elsewhere)])
        checked, elsewhere = (sum(of_ranks) for of_ranks in zip(*counted, strict=True))
        refused = sorted(ranks.gather_objects(refused), key=lambda one: one.row)
        sample = Sample(source=prompts[0].source, rows=len(chosen), checked=checked, elsewhere=elsewhere)
        _tell(what, sample, refused, best=best)
        _tell_of_layouts(what, Counter(ranks.gather_objects(list(layouts.elements()))))

    def _scores(
        self,
        scorer: RewardScorer,
        prompts: Sequence[Prompt],
        replies: Sequence[Sequence[Reply]],
        best: float,
        order: list[int],
        layouts: Counter[str],
    ) -> list[float]:
        """The highest score of each gold's layouts; a further layout is tried only where none was right before.

        Args:
            scorer: of the one reward.
            prompts: with the golds.
            replies: right ones, for each prompt.
            best: what a right answer earns.
            order: in which layouts are tried, by number; the one that was right comes first from now on.
            layouts: of the replies that were right, to be counted.
        """
        scores = [math.nan] * len(prompts)
        order += range(len(order), max(map(len, replies)))
        for number in list(order):
            left = [row for row, score in enumerate(scores) if not score >= best - ROUNDING]
            left = [row for row in left if number < len(replies[row])]
            if not left:
                continue
            given = self._ask(scorer, [(prompts[row], replies[row][number].text) for row in left])
            for row, (score,) in zip(left, given.total, strict=True):
                if score >= best - ROUNDING:
                    layouts[replies[row][number].layout] += 1
                scores[row] = score if math.isnan(scores[row]) else max(scores[row], score)
            if any(scores[row] >= best - ROUNDING for row in left):
                order.remove(number)
                order.insert(0, number)
        return scores

    def _unreadable(
        self,
        scorer: RewardScorer,
        prompts: Sequence[Prompt],
        replies: Sequence[Sequence[Reply]],
        scores: Sequence[float],
    ) -> set[int]:
        """Of the rows without a score, those whose golds the reward should read and cannot.

        A row without an answer may be one to which the reward does not apply: any reply shows it. Functions count over
        a whole call; where they count some of the rows only, each is asked about by itself.
        """
        unknown = [row for row, score in enumerate(scores) if math.isnan(score)]
        written = {row: (prompts[row], replies[row][0].text if replies[row] else WORK) for row in unknown}
        found = {row for row in unknown if not replies[row] and str(prompts[row].columns.get("answer") or "").strip()}
        asked = [row for row in unknown if row not in found]
        number = self._count_unreadable(scorer, [written[row] for row in asked])
        if 0 < number < len(asked):
            return found | {row for row in asked if self._count_unreadable(scorer, [written[row]])}
        return found | set(asked if number else [])

    def _count_unreadable(self, scorer: RewardScorer, written: Sequence[tuple[Prompt, str]]) -> float:
        if not written:
            return 0.0
        scores = self._ask(scorer, written)
        # What pays for any reply where there is no answer does not know that there is none.
        paid = sum(not math.isnan(score) for (score,) in scores.total)
        return paid + scores.counts.get(f"rewards/{scorer.names[0]}/unreadable_golds", 0.0)

    def _ask(self, scorer: RewardScorer, written: Sequence[tuple[Prompt, str]]) -> Scores:
        completions = [[as_completion(prompt, reply, self.tokenizer)] for prompt, reply in written]
        return scorer.score([prompt for prompt, _ in written], completions, trainer_state=self.trainer_state)


def spread(prompts: Sequence[Prompt], most: int) -> list[Prompt]:
    """``most`` of the prompts, evenly spread over all; all if there are no more."""
    if most >= len(prompts):
        return list(prompts)
    return [prompts[i * len(prompts) // most] for i in range(most)]


def _allowed(rows: int) -> int:
    """How many of so many golds may fail."""
    return rows - math.ceil(ENOUGH * rows)


def _tell(what: str, sample: Sample, refused: list[Refused], *, best: float) -> None:
    tried, source = sample.checked - sample.elsewhere, sample.source
    if not tried:
        raise UserError(
            f"{what}: does not apply (returns None) to any of {sample.checked} rows of {source}, so it can teach "
            "nothing; choose another reward or other rows, or start all the same with --rollout.check_golds 0"
        )
    if sample.elsewhere:
        log.info("%s: does not apply (returns None) to %d rows of %s", what, sample.elsewhere, source)
    if not refused:
        log.info("%s: all of %d golds of %s earn %g", what, tried, source, best)
        return
    share = f"{len(refused)} of {tried} golds of {source}"
    of_all = sample.rows - sample.elsewhere
    if len(refused) <= _allowed(of_all):
        log.warning("%s: %s do not earn its best, %g: %s", what, share, best, _named(refused, NAMED_IN_WARNING))
        return
    raise UserError(
        f"{what}: {share} ({len(refused) / tried:.1%}) do not earn its best, {best:g}, when they are laid out as the "
        f"prompt asks; at most {1 - ENOUGH:.0%} may, {_allowed(of_all)} of {of_all}: "
        f"{_named(refused, NAMED_IN_ERROR)}; mend the rows or choose a fitting reward or "
        "--data.template.answer_format, or start all the same with --rollout.check_golds 0"
    )


def _named(refused: list[Refused], most: int) -> str:
    names = ", ".join(str(one) for one in refused[:most])
    return f"{names} and {len(refused) - most} more" if len(refused) > most else names


def _tell_of_layouts(what: str, layouts: Counter[str]) -> None:
    """Golds were right only in a layout that nobody may have told the model of."""
    if layouts and not layouts[""]:
        (name, _), *_ = layouts.most_common(1)
        log.warning(
            "%s: answers are right if laid out as %r, which --data.template.answer_format none does not ask for; "
            "unless the questions do, set it to %s",
            what, name, name,
        )  # fmt: skip
