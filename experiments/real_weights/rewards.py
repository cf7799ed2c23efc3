"""A dense reward for GSM8K: partial credit where a whole answer is still out of reach."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_RESULT = re.compile(r"<<[^<>]*=([^<>=]*)>>")
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?|\.\d+")
_NEXT_QUESTION = re.compile(r"^\s*Question:", re.MULTILINE)


def gold_steps(
    completions: Sequence[str], question: Sequence[str], published_answer: Sequence[str], **_: Any
) -> list[float | None]:
    """Share of the published solution's intermediate results that the completion states, 0 to 1.

    The results are those of the notes ``<<48/2=24>>``. One that also stands in the question is left out, for copying
    is no work; None if none is left. A next question that a base model makes up does not count. The reward does not
    look at how a number was come by, and writing many numbers can please it: it goes beside a reward for the right
    answer, in runs too short to be gamed.
    """
    scores: list[float | None] = []
    for completion, asked, published in zip(completions, question, published_answer, strict=True):
        results = {value for note in _RESULT.findall(published) for value in numbers(note)} - numbers(asked)
        stated = numbers(_NEXT_QUESTION.split(completion, maxsplit=1)[0])
        scores.append(len(results & stated) / len(results) if results else None)
    return scores


def numbers(text: str) -> set[float]:
    """Every number in a text, without its sign and its thousands marks."""
    return {float(number.replace(",", "")) for number in _NUMBER.findall(text)}
