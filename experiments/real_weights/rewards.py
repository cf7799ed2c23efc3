"""A dense reward for GSM8K: partial credit where a right answer is still out of reach."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

_WORD = re.compile(r"####|\d[\d,]*(?:\.\d+)?|[^\W\d_]+")
_NEXT_QUESTION = re.compile(r"^\s*Question:", re.MULTILINE)


def solution_overlap(completions: Sequence[str], solution: Sequence[str], **_: Any) -> list[float | None]:
    """F1 of the completion's words, numbers and ``####`` against those of the published solution, 0 to 1.

    F1 = 2 · |shared| / (|completion| + |solution|), each word counted as often as it stands there; its order does not
    count. A next question that a base model makes up is cut off first. It says how much a text looks like the solution,
    not whether it is right, so it goes beside a reward for the right answer and into short runs only.
    """
    scores: list[float | None] = []
    for completion, gold in zip(completions, solution, strict=True):
        own = words(_NEXT_QUESTION.split(completion, maxsplit=1)[0])
        published = words(gold)
        shared = (own & published).total()
        scores.append(2 * shared / max(own.total() + published.total(), 1))
    return scores


def words(text: str) -> Counter[str]:
    """Words in lower case, numbers without thousands marks, and ``####``, with their counts."""
    return Counter(word.replace(",", "") for word in _WORD.findall(text.lower()))
