"""Signs of worked-out reasoning: counted steps, words of the subject, length. None of them looks at the answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from grpo_lightning.errors import UserError
from grpo_lightning.rewards.completions import completion_text
from grpo_lightning.rewards.marks import inline
from grpo_lightning.rewards.settings import one_of
from grpo_lightning.rewards.words import reasoning, words

_STEPS = re.compile(r"Step \d+:|^\d+\.|^[-*]|First,|Second,|Next,|Finally,", re.MULTILINE)
_STEPS_AS_PUBLISHED = re.compile(r"Step \d+:|^\d+\.|\n-|\n\*|First,|Second,|Next,|Finally,")
_ENOUGH_STEPS = 3
_LENGTHS = ((20, 0.0), (50, 0.25), (100, 0.5))
_MOST_FOR_LENGTH = 0.75
LOGIC_KEYWORDS = ("row", "column", "sum", "unique", "digit", "no repeat", "clue")


@inline
def reasoning_steps(completions: Sequence[Any], **_: Any) -> list[float | None]:
    r"""min(1, count / 3) of the marks of steps: "Step n:", numbered lines, bullets, "First," and the like.

    Pattern ``Step \d+:|^\d+\.|^[-*]|First,|Second,|Next,|Finally,`` with ``re.MULTILINE``.
    Source: open-r1's ``reasoning_steps_reward``, published without that flag: ``reasoning_steps_as_published``.
    """
    return [_share_of_steps(_STEPS, completion) for completion in completions]


@inline
def reasoning_steps_as_published(completions: Sequence[Any], **_: Any) -> list[float | None]:
    r"""``reasoning_steps`` without ``re.MULTILINE``: a numbered line counts only as the first line of the text.

    Pattern ``Step \d+:|^\d+\.|\n-|\n\*|First,|Second,|Next,|Finally,``. Source: open-r1's ``reasoning_steps_reward``.
    """
    return [_share_of_steps(_STEPS_AS_PUBLISHED, completion) for completion in completions]


def _share_of_steps(pattern: re.Pattern[str], completion: Any) -> float:
    count = sum(1 for _ in pattern.finditer(completion_text(completion)))
    return min(1.0, count / _ENOUGH_STEPS)


@inline
def reasoning_length(completions: Sequence[Any], **_: Any) -> list[float | None]:
    """By the words of the reasoning: under 20 gives 0, under 50 gives 0.25, under 100 gives 0.5, more give 0.75.

    The reasoning is what stands in ``<reasoning>`` (or ``<think>``) tags; without both tags it has no words. Words
    are cut at white space, and a Chinese character is one. Source: the recipe for multiple-choice logic.
    """
    scores: list[float | None] = []
    for completion in completions:
        count = len(words(reasoning(completion_text(completion))))
        scores.append(next((score for limit, score in _LENGTHS if count < limit), _MOST_FOR_LENGTH))
    return scores


class ReasoningKeywords:
    """So much for each keyword that occurs in the reasoning, up to a limit.

    The reasoning is what stands in ``<reasoning>`` (or ``<think>``) tags. Case does not matter. A keyword is a word
    of its own, plural and other common endings included; ``variant="as_published"`` takes it inside other words
    too, by which "assume" is a "sum" and "grow" a "row".

    Source: the recipe for multiple-choice logic: seven keywords, 0.1 each, at most 0.5.

    Args:
        keywords: words or phrases.
        each: score of one keyword, however often it occurs.
        most: limit of the score.
        variant: ``default`` or ``as_published``.
    """

    __name__ = "reasoning_keywords"
    inline = True

    def __init__(
        self,
        *,
        keywords: Sequence[str] = LOGIC_KEYWORDS,
        each: float = 0.1,
        most: float = 0.5,
        variant: Literal["default", "as_published"] = "default",
    ) -> None:
        if isinstance(keywords, str) or not keywords or not all(word.strip() for word in keywords):
            raise UserError(f"ReasoningKeywords: keywords {keywords!r} must be a list of at least one word")
        self.keywords = [keyword.strip().lower() for keyword in keywords]
        self.each = each
        self.most = most
        self.variant = one_of("ReasoningKeywords", "variant", variant, ("default", "as_published"))
        layout = "{}" if variant == "as_published" else r"(?<!\w){}(?:e?s|e?d|ing|ly)?(?!\w)"
        self._patterns = [re.compile(layout.format(re.escape(keyword))) for keyword in self.keywords]

    def __call__(self, completions: Sequence[Any], **_: Any) -> list[float | None]:
        texts = [reasoning(completion_text(completion)).lower() for completion in completions]
        counts = [sum(pattern.search(text) is not None for pattern in self._patterns) for text in texts]
        return [min(round(self.each * count, 9), self.most) for count in counts]
