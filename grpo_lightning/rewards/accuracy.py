r"""Is the final answer right? 1.0 or 0.0, and None where the gold answer itself cannot be read.

Where the answer is looked for is told in ``answers.extraction``, what counts as the same in ``answers.equivalence``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from grpo_lightning.rewards.answers import readable, symbolic
from grpo_lightning.rewards.answers.equivalence import BARE_NUMBER, LONGEST_ANSWER, is_evaluated, quick_verdict
from grpo_lightning.rewards.answers.extraction import final_answer
from grpo_lightning.rewards.answers.notation import normal_form
from grpo_lightning.rewards.answers.numbers import Number, parse_number, same_number
from grpo_lightning.rewards.completions import completion_text
from grpo_lightning.rewards.isolation.pool import SHARED_POOL
from grpo_lightning.rewards.marks import answer_reader, best, gold_reader, inline

LogCount = Callable[[str, float], None]
"""``log_count(name, number)``, as the scorer offers it."""

CALCULATION_NOTE = re.compile(r"<<[^<>]*>>")
"""A note in GSM8K's worked solutions, ``<<48/2=24>>``."""
_NUMBER_IN_TEXT = re.compile(r"(?<![\w.,])-?\d[\d,]*(?:\.\d+)?(?!\d)")
_PUBLISHED_STRICT = re.compile(r"#### \$?(-?[0-9.,]+)")
_PUBLISHED_FLEXIBLE = re.compile(r"(-?[0-9.,]+)")
_KNOWN_GOLDS: dict[str, bool] = {}
_MOST_KNOWN_GOLDS = 100_000


def gsm8k_gold(answer: Any) -> str:
    """The gold number of a GSM8K row: after the last ``####``, without ``<<...>>`` notes and thousands marks."""
    text = CALCULATION_NOTE.sub("", str(answer)).rpartition("####")[2].strip()
    return re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)


@inline
@best(1.0)
@gold_reader(gsm8k_gold)
@answer_reader(final_answer)
def gsm8k_accuracy(
    completions: Sequence[Any], answer: Sequence[Any], log_count: LogCount | None = None, **_: Any
) -> list[float | None]:
    """1.0 if the completion's final number is the gold one, else 0.0; None if the gold is not a number.

    The last ``#### x`` counts; other marked forms (``\\boxed``, ``<answer>``, "the answer is") are taken too. A number
    that merely stands last in the text is no answer. No algebra: ``18``, ``18.00``, ``$18`` and ``18 dollars`` agree.
    Source: GSM8K (arXiv 2110.14168), whose solutions end in ``#### x``.

    Args:
        completions: texts or chat messages.
        answer: gold numbers, or worked solutions that end in one.
        log_count: counts completions whose gold is not a number (``unreadable_golds``).
    """
    scores: list[float | None] = []
    for completion, gold in zip(completions, answer, strict=True):
        gold_number = parse_number(normal_form(gsm8k_gold(gold)))
        if gold_number is None:
            scores.append(None)
            continue
        number = number_of(final_answer(completion_text(completion)))
        scores.append(float(number is not None and same_number(gold_number, number)))
    if log_count is not None:
        log_count("unreadable_golds", scores.count(None))
    return scores


class GSM8KAccuracy:
    """GSM8K's score with one of the two published ways to find the answer (verl's ``gsm8k.compute_score``).

    Strict: the number after the last ``#### ``, ``#### (\\-?[0-9\\.\\,]+)``. Flexible: the last number of the text,
    ``(\\-?[0-9\\.\\,]+)``; a lone dot is none. Either looks only at the last 300 characters. Unlike there, numbers are
    compared by value, so that ``18.00`` is 18, and a dollar sign may follow the marks. ``gsm8k_accuracy`` knows more
    forms.

    Args:
        flexible: take the last number, marked or not. It also pays "18 dollars, and she has 4 left" for a gold of 4.
    """

    __name__ = "gsm8k_accuracy"
    inline = True
    best = 1.0
    gold_reader = staticmethod(gsm8k_gold)

    def __init__(self, *, flexible: bool = False) -> None:
        self.flexible = flexible

    def answer_reader(self, text: str) -> str | None:
        pattern = _PUBLISHED_FLEXIBLE if self.flexible else _PUBLISHED_STRICT
        found = [number for number in pattern.findall(text[-300:]) if number.strip(".,-")]
        return found[-1].replace(",", "").rstrip(".") if found else None

    def __call__(
        self, completions: Sequence[Any], answer: Sequence[Any], log_count: LogCount | None = None, **_: Any
    ) -> list[float | None]:
        scores: list[float | None] = []
        for completion, gold in zip(completions, answer, strict=True):
            gold_number = parse_number(normal_form(gsm8k_gold(gold)))
            found = self.answer_reader(completion_text(completion))
            number = parse_number(found) if found else None
            right = gold_number is not None and number is not None and same_number(gold_number, number)
            scores.append(None if gold_number is None else float(right))
        if log_count is not None:
            log_count("unreadable_golds", scores.count(None))
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
@answer_reader(final_answer)
def math_accuracy(
    completions: Sequence[Any], answer: Sequence[Any], log_count: LogCount | None = None, **_: Any
) -> list[float | None]:
    """1.0 if the completion's final answer is mathematically the gold one, else 0.0; None for an unreadable gold.

    Numbers, words and identical texts are decided at once. The rest goes to math-verify and sympy in worker processes
    with a time and a memory limit; what exceeds them, or crashes, scores 0.0. Source: the accuracy reward of open-r1
    and TRL, with math-verify behind rules of our own.

    Args:
        completions: texts or chat messages.
        answer: gold answers.
        log_count: counts completions whose algebra took too long (``timeouts``) and those whose gold could not be read
            (``unreadable_golds``).
    """
    golds = [str(gold) for gold in answer]
    answers = [final_answer(completion_text(completion)) for completion in completions]
    return _scores(golds, answers, log_count=log_count)


class MathAccuracy:
    """``math_accuracy`` (TRL's and open-r1's accuracy reward) with settings, for YAML.

    ``class_path: grpo_lightning.rewards.MathAccuracy``, ``init_args: {evaluated_only: true}``.

    Args:
        evaluated_only: refuse a mere restatement of the problem where the gold answer is a number: then the answer must
            be a number too. Numbers are whole and decimal numbers, fractions that are no whole number, mixed numbers,
            percentages, ``3.2\\times 10^5`` and numbers in words, each with or without a unit and a name (``x = 5``).
            Unevaluated are sums, products, powers, roots, factorials, and quotients that come out whole: ``48+16``,
            ``2^6``, ``\\sqrt{4096}`` and ``\\frac{128}{2}`` for 64. What follows the last equality sign counts, so
            ``48+16=64`` is evaluated. Golds that are no number (``\\sqrt{3}``, ``x+1``) are judged as usual.
    """

    __name__ = "math_accuracy"
    inline = True
    best = 1.0
    answer_reader = staticmethod(final_answer)

    def __init__(self, *, evaluated_only: bool = False) -> None:
        self.evaluated_only = evaluated_only

    def __call__(
        self, completions: Sequence[Any], answer: Sequence[Any], log_count: LogCount | None = None, **_: Any
    ) -> list[float | None]:
        golds = [str(gold) for gold in answer]
        answers = [final_answer(completion_text(completion)) for completion in completions]
        if self.evaluated_only:
            answers = [
                found if found is None or is_evaluated(gold, found) else None
                for gold, found in zip(golds, answers, strict=True)
            ]
        return _scores(golds, answers, log_count=log_count)


def _scores(golds: list[str], answers: list[str | None], *, log_count: LogCount | None) -> list[float | None]:
    """Verdicts about final answers; None where the gold is unreadable."""
    readable = dict(zip(golds, golds_are_parsable(golds), strict=True))
    scores: list[float | None] = []
    unclear: dict[tuple[str, str], list[int]] = {}
    for row, (gold, found) in enumerate(zip(golds, answers, strict=True)):
        verdict = quick_verdict(gold, found) if found and readable[gold] else False
        scores.append(float(verdict is True) if readable[gold] else None)
        if verdict is None and found:
            unclear.setdefault((gold, found), []).append(row)
    outcomes = SHARED_POOL.run(symbolic.verdict, list(unclear), warm_up=symbolic.warm_up)
    late = 0
    for rows, outcome in zip(unclear.values(), outcomes, strict=True):
        late += len(rows) * (outcome.failure == "timeout")
        for row in rows:
            scores[row] = float(outcome.value is True)
    if log_count is not None:
        log_count("timeouts", late)
        log_count("unreadable_golds", scores.count(None))
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
            known = BARE_NUMBER.fullmatch(gold) is not None
            if known or (len(gold) <= LONGEST_ANSWER and readable.is_readable(gold, lambda _: False)):
                _KNOWN_GOLDS[gold] = True
            else:
                hard.append(gold)
    outcomes = SHARED_POOL.run(symbolic.is_readable, [(gold,) for gold in hard], warm_up=symbolic.warm_up)
    _KNOWN_GOLDS.update({gold: outcome.value is True for gold, outcome in zip(hard, outcomes, strict=True)})
    return [_KNOWN_GOLDS[gold] for gold in golds]
