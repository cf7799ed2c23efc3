r"""Is the final answer right? 1.0 or 0.0, and None where the gold answer itself cannot be read.

Where the answer is looked for is told in ``answers.extraction``, what counts as the same in ``answers.equivalence``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from grpo_lightning.rewards.answers import symbolic
from grpo_lightning.rewards.answers.equivalence import is_plain, quick_verdict
from grpo_lightning.rewards.answers.extraction import final_answer
from grpo_lightning.rewards.answers.notation import normal_form
from grpo_lightning.rewards.answers.numbers import Number, parse_number, same_number
from grpo_lightning.rewards.completions import completion_text
from grpo_lightning.rewards.isolation import SHARED_POOL
from grpo_lightning.rewards.marks import best, inline

CALCULATION_NOTE = re.compile(r"<<[^<>]*>>")
"""A note in GSM8K's worked solutions, ``<<48/2=24>>``."""
_NUMBER_IN_TEXT = re.compile(r"(?<![\w.,])-?\d[\d,]*(?:\.\d+)?(?!\d)")
_KNOWN_GOLDS: dict[str, bool] = {}
_MOST_KNOWN_GOLDS = 100_000


def gsm8k_gold(answer: Any) -> str:
    """The gold number of a GSM8K row: after the last ``####``, without ``<<...>>`` notes and thousands marks."""
    text = CALCULATION_NOTE.sub("", str(answer)).rpartition("####")[2].strip()
    return re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)


@inline
@best(1.0)
def gsm8k_accuracy(completions: Sequence[Any], answer: Sequence[Any], **_: Any) -> list[float | None]:
    """1.0 if the completion's final number is the gold one, else 0.0; None if the gold is not a number.

    The last ``#### x`` counts; other marked forms (``\\boxed``, ``<answer>``, "the answer is") are taken too. A number
    that merely stands last in the text is no answer. No algebra: ``18``, ``18.00``, ``$18`` and ``18 dollars`` agree.
    Source: GSM8K (arXiv 2110.14168), whose solutions end in ``#### x``.
    """
    scores: list[float | None] = []
    for completion, gold in zip(completions, answer, strict=True):
        gold_number = parse_number(normal_form(gsm8k_gold(gold)))
        if gold_number is None:
            scores.append(None)
            continue
        number = number_of(final_answer(completion_text(completion)))
        scores.append(float(number is not None and same_number(gold_number, number)))
    return scores


def number_of(answer: str | None) -> Number | None:
    """The number that a final answer gives: all of it, what follows its last ``=``, or the only number in it."""
    if answer is None or len(answer) > 1_000:
        return None
    text = normal_form(answer)
    whole = parse_number(text) or parse_number(text.rpartition("=")[2])
    if whole is not None:
        return whole
    numbers = _NUMBER_IN_TEXT.findall(text)
    is_prose = len(numbers) == 1 and re.fullmatch(r"[A-Za-z\s.,:'⟦⟧]*", text.replace(numbers[0], ""))
    return parse_number(numbers[0].rstrip(",")) if is_prose else None


@inline
@best(1.0)
def math_accuracy(completions: Sequence[Any], answer: Sequence[Any], **_: Any) -> list[float | None]:
    """1.0 if the completion's final answer is mathematically the gold one, else 0.0; None for an unreadable gold.

    Numbers, words and identical texts are decided at once. The rest goes to math-verify and sympy in worker processes
    with a time and a memory limit; what exceeds them, or crashes, scores 0.0.
    """
    golds = [str(gold) for gold in answer]
    answers = [final_answer(completion_text(completion)) for completion in completions]
    readable = dict(zip(golds, golds_are_parsable(golds), strict=True))
    scores: list[float | None] = []
    unclear: dict[tuple[str, str], list[int]] = {}
    for row, (gold, found) in enumerate(zip(golds, answers, strict=True)):
        verdict = quick_verdict(gold, found) if readable[gold] and found else False
        scores.append(None if not readable[gold] else float(bool(verdict)))
        if verdict is None and found:
            unclear.setdefault((gold, found), []).append(row)
    outcomes = SHARED_POOL.run(symbolic.verdict, list(unclear), warm_up=symbolic.warm_up)
    for rows, outcome in zip(unclear.values(), outcomes, strict=True):
        for row in rows:
            scores[row] = float(outcome.value is True)
    return scores


def gold_is_parsable(gold: str) -> bool:
    """Whether a gold answer can be read, so that completions can be judged against it."""
    return golds_are_parsable([gold])[0]


def golds_are_parsable(golds: Sequence[str]) -> list[bool]:
    """``gold_is_parsable`` of many; each distinct gold is looked at once per process."""
    if len(_KNOWN_GOLDS) > _MOST_KNOWN_GOLDS:
        _KNOWN_GOLDS.clear()
    hard = []
    for gold in dict.fromkeys(golds):
        if gold not in _KNOWN_GOLDS:
            if is_plain(normal_form(gold)):
                _KNOWN_GOLDS[gold] = True
            else:
                hard.append(gold)
    outcomes = SHARED_POOL.run(symbolic.is_readable, [(gold,) for gold in hard], warm_up=symbolic.warm_up)
    _KNOWN_GOLDS.update({gold: outcome.value is True for gold, outcome in zip(hard, outcomes, strict=True)})
    return [_KNOWN_GOLDS[gold] for gold in golds]
