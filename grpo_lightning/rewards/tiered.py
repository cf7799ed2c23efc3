r"""Partial credit for answers in Chinese or English: tiers by what the text holds, and a shaped sum.

Both come from the recipe that builds GRPO from scratch on GSM8K. The answer is taken from the last ``\boxed{}``,
else from the last ``### 答案:`` (full- or half-width colon), else from the last "the answer is". Text before
``</think>`` is no answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from grpo_lightning.errors import UserError
from grpo_lightning.rewards.answers.extraction import boxed_answer, without_reasoning
from grpo_lightning.rewards.answers.notation import normal_form
from grpo_lightning.rewards.answers.numbers import parse_number
from grpo_lightning.rewards.completions import completion_text
from grpo_lightning.rewards.exact import equal_numbers, gold_text
from grpo_lightning.rewards.settings import one_of
from grpo_lightning.rewards.words import HAN

SHORTEST = 10
"""Characters; a text under it is no attempt."""
_REASONING_WORDS = ("步", "step", "首先", "第一", "因此", "所以")
_STARTING_WORDS = ("步", "step", "首先", "第一", "解")
_STRUCTURE_WORDS = ("首先", "然后", "接着", "最后", "step")
_CHECK_WORDS = ("验证", "检查", "检验")
_STEP_PHRASES = [
    re.compile(phrase, re.IGNORECASE)
    for phrase in (
        "首先",
        "然后",
        "接着",
        "最后",
        r"第\s*[0-9一二三四五六七八九十]+\s*步\s*[:\uff1a]",
        r"step\s*\d+\s*[:\uff1a]",
    )
]
_STEP_KINDS = 5
_HEADING = re.compile(r"###[ \t]*答案[ \t]*[:\uff1a]")
_SAID = re.compile(r"the answer is[ \t]*[:\uff1a]?", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.](?=\s|$)|[。\uff0c\uff1b;!\uff01]|,\s")
_NOTE = re.compile(r"<<[^<>]*=([^<>=]+)>>")
_NUMBER = re.compile(r"(?<![\d.])\d[\d,]*(?:\.\d+)?|(?<![\d.])\.\d+")
_NOTE_COLUMNS = ("published_answer", "solution", "answer")

Variant = Literal["default", "as_published"]
ShapedVariant = Literal["default", "documented", "as_published"]


def tiered_answer(text: str) -> str | None:
    """The last box, or what follows the last heading or phrase of an answer; None without any."""
    text = without_reasoning(text)
    box = boxed_answer(text)
    if box is not None and box[1]:
        return box[1]
    for pattern in (_HEADING, _SAID):
        marks = list(pattern.finditer(text))
        if marks:
            line = text[marks[-1].end() :].lstrip(" \t").partition("\n")[0]
            line = _SENTENCE_END.split(line, maxsplit=1)[0] if pattern is _SAID else line
            return line.strip(" \t\r*_`.。") or None
    return None


class TieredAccuracy:
    """1.0 for a right answer, less for less.

    Source: the tiered reward of the recipe that builds GRPO from scratch.

    ========================================  =================================================================
    right                                     1.0
    any other text under 10 characters        -1.0
    wrong answer                              0.2 with a reasoning word (步, step, 首先, 第一, 因此, 所以), else 0.0
    no answer                                 0.1 with a reasoning word (步, step, 首先, 第一, 解), else -0.5
    ========================================  =================================================================

    Case does not matter. By default equal numbers agree (``18.00 元`` is ``18``), a number and another text do not,
    and a right answer counts however short the text is. ``variant="as_published"`` compares the texts without
    spaces, commas and leading zeros, in lower case, so that "1, 2" is 12, and looks at the length first:
    ``\\boxed{5}`` alone is -1.0.

    Args:
        variant: ``default`` or ``as_published``.
    """

    __name__ = "tiered_accuracy"
    inline = True
    best = 1.0
    gold_reader = staticmethod(gold_text)
    answer_reader = staticmethod(tiered_answer)

    def __init__(self, *, variant: Variant = "default") -> None:
        self.variant = one_of("TieredAccuracy", "variant", variant, ("default", "as_published"))

    def __call__(self, completions: Sequence[Any], answer: Sequence[Any], **_: Any) -> list[float | None]:
        golds = [gold_text(gold) for gold in answer]
        texts = [completion_text(completion) for completion in completions]
        return [self._score(text, gold) if gold else None for text, gold in zip(texts, golds, strict=True)]

    def _score(self, text: str, gold: str) -> float:
        if self.variant == "as_published" and len(text.strip()) < SHORTEST:
            return -1.0
        found = tiered_answer(text)
        return 1.0 if _is_right(found, gold, self.variant) else _tier(text, found)


class ShapedAccuracy:
    """1.0 for a right answer; else base + form + steps + intermediate results, never above a cap.

    Source: the shaped reward of the recipe that builds GRPO from scratch. The sum's parts:

    - base: what ``TieredAccuracy`` gives to the wrong text;
    - form: 0.15 for an answer marker (``### 答案`` or a box), 0.1 for a word of structure (首先, 然后, 接着, 最后,
      step), 0.05 for a word of checking (验证, 检查, 检验);
    - steps: 0.2 x min(kinds seen / 5, 1) of six phrases: 首先, 然后, 接着, 最后, 第N步:, Step N:;
    - intermediate: 0.5 x share of the results in the data's ``<<48/2=24>>`` notes that occur in the text as
      numbers. The notes are looked for in the columns ``published_answer`` (GSM8K), ``solution`` and ``answer``;
      without any, 0.

    Variants: ``default`` caps a wrong answer at 0.9; ``documented`` is the same with the published cap of 1.0,
    which can pay it like a right one; ``as_published`` is what the recipe's code does: form times 0.3 (at most
    0.09), no intermediate results, cap 1.0. The latter two compare answers as
    ``TieredAccuracy(variant="as_published")`` does.

    Args:
        variant: ``default``, ``documented`` or ``as_published``.
        cap: most that a wrong answer earns; None takes the variant's.
    """

    __name__ = "shaped_accuracy"
    inline = True
    best = 1.0
    gold_reader = staticmethod(gold_text)
    answer_reader = staticmethod(tiered_answer)

    def __init__(self, *, variant: ShapedVariant = "default", cap: float | None = None) -> None:
        self.variant = one_of("ShapedAccuracy", "variant", variant, ("default", "documented", "as_published"))
        self.cap = (0.9 if variant == "default" else 1.0) if cap is None else cap
        if not -1.0 <= self.cap <= 1.0:
            raise UserError(f"ShapedAccuracy: cap {cap} must lie between -1 and 1, what a right answer earns")

    def __call__(self, completions: Sequence[Any], answer: Sequence[Any], **columns: Any) -> list[float | None]:
        notes = [columns.get(name) or [] for name in _NOTE_COLUMNS[:-1]] + [answer]
        scores: list[float | None] = []
        for row, (completion, gold) in enumerate(zip(completions, answer, strict=True)):
            sources = [str(column[row]) for column in notes if row < len(column)]
            scores.append(self._score(completion_text(completion), gold_text(gold), sources))
        return scores

    def _score(self, text: str, gold: str, sources: Sequence[str]) -> float | None:
        if not gold:
            return None
        found = tiered_answer(text)
        if _is_right(found, gold, "default" if self.variant == "default" else "as_published"):
            return 1.0
        score = _tier(text, found) + 0.2 * min(sum(p.search(text) is not None for p in _STEP_PHRASES) / _STEP_KINDS, 1)
        if self.variant == "as_published":
            score += 0.3 * _form(text)
        else:
            score += _form(text) + 0.5 * _share_of_results(text, sources)
        return min(round(score, 9), self.cap)


def _is_right(found: str | None, gold: str, variant: Variant) -> bool:
    if found is None:
        return False
    if variant == "as_published":
        return _normal_as_published(found) == _normal_as_published(gold)
    if parse_number(normal_form(gold[:1000])) is None:
        return normal_form(found[:1000]).casefold() == normal_form(gold[:1000]).casefold()
    return equal_numbers(re.sub(rf"^[{HAN}\s]+|[{HAN}\s]+$", "", found[:1000]), gold)


def _normal_as_published(text: str) -> str:
    text = re.sub(r"[\s,\uff0c]", "", text).lower()
    return text.lstrip("0") or "0"


def _tier(text: str, found: str | None) -> float:
    """Base reward of a text whose answer is not right."""
    lower = text.lower()
    if len(text.strip()) < SHORTEST:
        return -1.0
    if found is not None:
        return 0.2 if any(word in lower for word in _REASONING_WORDS) else 0.0
    return 0.1 if any(word in lower for word in _STARTING_WORDS) else -0.5


def _form(text: str) -> float:
    lower = text.lower()
    marker = "### 答案" in text or "\\boxed" in text
    structure = any(word in lower for word in _STRUCTURE_WORDS)
    check = any(word in text for word in _CHECK_WORDS)
    return 0.15 * marker + 0.1 * structure + 0.05 * check


def _share_of_results(text: str, sources: Sequence[str]) -> float:
    results = next((set(map(_plain, found)) for source in sources if (found := _NOTE.findall(source))), None)
    if not results:
        return 0.0
    return len(results & set(map(_plain, _NUMBER.findall(text)))) / len(results)


def _plain(number: str) -> str:
    """One spelling for a number: no thousands marks, no sign, no zeros that say nothing."""
    number = number.strip().replace(",", "").lstrip("-$").lstrip("0")
    number = number.rstrip("0").rstrip(".") if "." in number else number
    return number or "0"
