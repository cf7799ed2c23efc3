r"""Answers between tags, compared as they stand: exact answers, whole numbers, letters of a choice.

Only the last ``<answer>`` counts, and only if it is closed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from grpo_lightning.rewards.answers.notation import normal_form
from grpo_lightning.rewards.answers.numbers import Number, parse_number, same_number
from grpo_lightning.rewards.completions import completion_text
from grpo_lightning.rewards.marks import answer_reader, best, gold_reader, inline
from grpo_lightning.rewards.words import last_inside

_INTEGER = re.compile(r"[-+\u2212]?(?:[0-9]+|[0-9]{1,3}(?:,[0-9]{3})+)")
_BOXED_LETTER = re.compile(r"\\boxed\{\s*([A-D])\s*\}")
_BARE_LETTER = re.compile(r"\(?([A-D])[.)]?")
_LONGEST_ANSWER = 200
"""Characters of an answer that is still read as a number."""


def gold_text(answer: Any) -> str:
    """A gold answer as text, stripped: what stands after its last ``####``, or all of it."""
    return str(answer).rpartition("####")[2].strip()


def gold_letter(answer: Any) -> str | None:
    """The letter A to D that a gold is or, in a whole reply, boxes last; None if there is none."""
    text = str(answer).strip()
    bare = _BARE_LETTER.fullmatch(text)
    if bare:
        return bare.group(1)
    boxed = _BOXED_LETTER.findall(text)
    return boxed[-1] if boxed else None


def tagged_text(text: str) -> str | None:
    """What stands in the last ``<answer>...</answer>``, stripped; None without one."""
    found = last_inside(text, "answer")
    return None if found is None else found.strip()


@best(2.0)
@inline
@gold_reader(gold_text)
@answer_reader(tagged_text)
def exact_answer(completions: Sequence[Any], answer: Sequence[Any], **_: Any) -> list[float | None]:
    """2.0 if the text in the last ``<answer>...</answer>`` is the gold one, else 0.0; None for an empty gold.

    Both are stripped; of the gold, what stands after ``####`` counts. Equal texts agree and equal numbers do:
    ``0.5`` is ``1/2``, ``1,234`` is ``1234.0``. No algebra.

    Source: ``correctness_reward_func`` of the GSM8K recipe with five rewards, which compares texts only:
    ``exact_answer_as_published``.
    """
    scores: list[float | None] = []
    for completion, gold in zip(completions, map(gold_text, answer), strict=True):
        found = tagged_text(completion_text(completion)) or ""
        scores.append(2.0 * (found == gold or equal_numbers(found, gold)) if gold else None)
    return scores


def tagged_text_as_published(text: str) -> str:
    """What stands after the last ``<answer>`` and before the next ``</answer>``; a missing tag cuts nothing off."""
    return text.rpartition("<answer>")[2].partition("</answer>")[0].strip()


@best(2.0)
@inline
@gold_reader(gold_text)
@answer_reader(tagged_text_as_published)
def exact_answer_as_published(completions: Sequence[Any], answer: Sequence[Any], **_: Any) -> list[float | None]:
    """2.0 if the texts are equal, character by character, else 0.0; None for an empty gold.

    The answer is what stands after the last ``<answer>`` and before the next ``</answer>``, stripped; a missing tag
    cuts nothing off, so a text without tags is compared as a whole. Source: ``correctness_reward_func`` with its
    ``extract_xml_answer``, GSM8K recipe with five rewards.
    """
    texts = [tagged_text_as_published(completion_text(completion)) for completion in completions]
    return [2.0 * (text == gold) if gold else None for text, gold in zip(texts, map(gold_text, answer), strict=True)]


@inline
def integer_answer(completions: Sequence[Any], **_: Any) -> list[float | None]:
    """0.5 if the text in the last ``<answer>...</answer>`` is a whole number, right or wrong, else 0.0.

    A sign and thousands marks are allowed. Source: ``int_reward_func`` of the GSM8K recipe with five rewards, published
    with ``str.isdigit``: ``integer_answer_as_published``.
    """
    texts = [tagged_text(completion_text(completion)) or "" for completion in completions]
    return [0.5 * (_INTEGER.fullmatch(text) is not None) for text in texts]


@inline
def integer_answer_as_published(completions: Sequence[Any], **_: Any) -> list[float | None]:
    """``integer_answer`` by ``str.isdigit``: no sign, no thousands marks, but digits of any script and superscripts.

    A missing tag cuts nothing off. Source: ``int_reward_func``, GSM8K recipe with five rewards.
    """
    return [0.5 * tagged_text_as_published(completion_text(completion)).isdigit() for completion in completions]


@best(2.0)
@inline
@gold_reader(gold_letter)
@answer_reader(tagged_text)
def multiple_choice(completions: Sequence[Any], answer: Sequence[Any], **_: Any) -> list[float | None]:
    r"""2.0 if the last ``<answer>...</answer>`` holds the gold letter as ``\boxed{A}`` to ``\boxed{D}``, else 0.0.

    Different letters in one answer earn nothing. The gold is a letter, ``(B)``, or a whole reply whose last boxed
    letter counts; None for a gold without one. Source: correctness reward of the recipe for multiple-choice logic.
    """
    scores: list[float | None] = []
    for completion, gold in zip(completions, map(gold_letter, answer), strict=True):
        letters = set(_BOXED_LETTER.findall(last_inside(completion_text(completion), "answer") or ""))
        scores.append(2.0 * (letters == {gold}) if gold else None)
    return scores


def equal_numbers(first: str, second: str) -> bool:
    """Whether both texts are numbers, units and all, of the same value."""
    number, other = _number(first), _number(second)
    return number is not None and other is not None and same_number(other, number)


def _number(text: str) -> Number | None:
    return parse_number(normal_form(text)) if len(text) <= _LONGEST_ANSWER else None
