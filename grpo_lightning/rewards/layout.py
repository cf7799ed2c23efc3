r"""Does a completion keep the asked-for layout? The answer itself is not looked at.

Every ``...`` below may span lines (``re.DOTALL``). The strict forms match the whole text and want each tag exactly
once, which the published patterns do not: theirs also pay two replies in a row, and those with ``re.MULTILINE`` pay
text after the closing tag. A tag that the prompt's template has already opened is part of the completion by the
time a reward sees it. All are linear in the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from grpo_lightning.errors import UserError
from grpo_lightning.rewards.completions import completion_text
from grpo_lightning.rewards.marks import inline

THINK = ("<think>", "</think>")
THINK_ANSWER = (*THINK, "<answer>", "</answer>")
REASONING_ANSWER = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")
_LETTER = re.compile(r"[A-D]")
_REASONING_THEN_ANSWER = re.compile(r"</reasoning>\s*<answer>")


@inline
def think_format(completions: Sequence[Any], **_: Any) -> list[float | None]:
    r"""1.0 for ``<think>...</think>`` followed by anything, with exactly one of each tag.

    White space at the ends is free. Source: TRL's ``think_format_reward``,
    ``^<think>(?!.*<think>)(.*?)</think>.*$`` with ``re.DOTALL | re.MULTILINE``; that one also pays a second
    ``</think>`` and wants no white space in front.
    """
    return [float(_keeps(text.strip(), r"<think>.*</think>.*", THINK)) for text in map(completion_text, completions)]


@inline
def think_answer_format(completions: Sequence[Any], **_: Any) -> list[float | None]:
    r"""1.0 for ``<think>...</think> <answer>...</answer>`` and nothing else but white space around the tags.

    Source: open-r1's ``format_reward`` without its fixed line breaks, which are in ``think_answer_format_strict``.
    """
    pattern = r"<think>.*</think>\s*<answer>.*</answer>"
    return [float(_keeps(text.strip(), pattern, THINK_ANSWER)) for text in map(completion_text, completions)]


@inline
def think_answer_format_strict(completions: Sequence[Any], **_: Any) -> list[float | None]:
    r"""1.0 for ``<think>⏎...⏎</think>⏎<answer>⏎...⏎</answer>`` (⏎ a line break) as the whole text.

    Source: open-r1's ``format_reward``, ``^<think>\n.*?\n</think>\n<answer>\n.*?\n</answer>$`` with
    ``re.DOTALL | re.MULTILINE``, by which it also pays lines after ``</answer>``. White space at the end is free.
    """
    pattern = r"<think>\n.*\n</think>\n<answer>\n.*\n</answer>"
    return [float(_keeps(text.rstrip(), pattern, THINK_ANSWER)) for text in map(completion_text, completions)]


@inline
def reasoning_format_strict(completions: Sequence[Any], **_: Any) -> list[float | None]:
    r"""0.5 for ``<reasoning>⏎...⏎</reasoning>⏎<answer>⏎...⏎</answer>⏎`` (⏎ a line break) as the whole text.

    Source: ``strict_format_reward_func`` of the GSM8K recipe with five rewards, ``re.DOTALL``. The line break at
    the end is required, as published: a reply that stops right after ``</answer>`` earns nothing here.
    """
    pattern = r"<reasoning>\n.*\n</reasoning>\n<answer>\n.*\n</answer>\n"
    return [0.5 * _keeps(text, pattern, REASONING_ANSWER) for text in map(completion_text, completions)]


@inline
def reasoning_format_soft(completions: Sequence[Any], **_: Any) -> list[float | None]:
    r"""0.5 for a text that starts with ``<reasoning>...</reasoning>\s*<answer>...</answer>``; anything may follow.

    Source: ``soft_format_reward_func`` of the GSM8K recipe with five rewards. Published without ``re.DOTALL``, it never
    matched its own template of several lines: see ``reasoning_format_soft_as_published``.
    """
    return [0.5 * _starts_with_reasoning_and_answer(completion_text(completion)) for completion in completions]


@inline
def reasoning_format_soft_as_published(completions: Sequence[Any], **_: Any) -> list[float | None]:
    r"""``reasoning_format_soft`` without ``re.DOTALL``: 0.5 only where neither part spans lines.

    Source: ``soft_format_reward_func``, ``<reasoning>.*?</reasoning>\s*<answer>.*?</answer>`` with ``re.match``.
    """
    return [0.5 * _starts_with_one_line_each(completion_text(completion)) for completion in completions]


@inline
def choice_format_strict(completions: Sequence[Any], **_: Any) -> list[float | None]:
    r"""1.0 for ``<reasoning>⏎...⏎</reasoning>⏎<answer>⏎\boxed{[A-D]}⏎</answer>`` (⏎ a line break) as the stripped text.

    Source: strict format reward of the recipe for multiple-choice logic, ``re.DOTALL``.
    """
    pattern = r"<reasoning>\n.*\n</reasoning>\n<answer>\n\\boxed\{[A-D]\}\n</answer>"
    return [float(_keeps(text.strip(), pattern, REASONING_ANSWER)) for text in map(completion_text, completions)]


@inline
def choice_format_soft(completions: Sequence[Any], **_: Any) -> list[float | None]:
    r"""0.5 if the text holds ``<reasoning>...</reasoning>`` and later ``<answer>...[A-D]...</answer>``, anywhere.

    Source: soft format reward of the recipe for multiple-choice logic, ``re.DOTALL``. Any capital A to D inside the
    answer will do, as published; it may not stand behind the answer's closing tag.
    """
    return [0.5 * _holds_reasoning_and_letter(completion_text(completion)) for completion in completions]


class CodeFormat:
    r"""1.0 for ``<think>⏎...⏎</think>⏎<answer>⏎...```python...```...⏎</answer>`` as the whole text, else 0.0.

    Source: open-r1's ``get_code_format_reward``; its pattern has ``re.DOTALL | re.MULTILINE`` and starts and ends with
    ``^`` and ``$``, by which it also pays lines after ``</answer>``.

    Args:
        language: word right after the opening fence.
    """

    __name__ = "code_format"
    inline = True

    def __init__(self, *, language: str = "python") -> None:
        if not language.strip():
            raise UserError("CodeFormat: language is empty; give the word after the opening fence, such as python")
        self.language = language

    def __call__(self, completions: Sequence[Any], **_: Any) -> list[float | None]:
        pattern = r"<think>\n.*\n</think>\n<answer>\n.*\n</answer>"
        scores: list[float | None] = []
        for text in map(completion_text, completions):
            keeps = _keeps(text.rstrip(), pattern, THINK_ANSWER)
            fence = text.find(f"```{self.language}", text.find("<answer>"))
            scores.append(float(keeps and fence >= 0 and "```" in text[fence + 3 :]))
        return scores


def _keeps(text: str, pattern: str, tags: tuple[str, ...]) -> bool:
    # Tags are counted first: with one of each the pattern cannot backtrack far, whatever the text holds.
    return all(text.count(tag) == 1 for tag in tags) and re.fullmatch(pattern, text, re.DOTALL) is not None


def _starts_with_reasoning_and_answer(text: str) -> bool:
    # The first place where the two parts meet decides: a closing tag behind a later one is behind this one, too.
    meeting = _REASONING_THEN_ANSWER.search(text, len("<reasoning>")) if text.startswith("<reasoning>") else None
    return meeting is not None and text.find("</answer>", meeting.end()) >= 0


def _starts_with_one_line_each(text: str) -> bool:
    if not text.startswith("<reasoning>"):
        return False
    first_line_end = _line_end(text, 0)
    tried = -1
    for meeting in _REASONING_THEN_ANSWER.finditer(text, len("<reasoning>")):
        if meeting.start() > first_line_end:
            break
        line_end = _line_end(text, meeting.end())
        # One look at each line is enough: what is behind a later meeting is behind the first one, too.
        if line_end != tried and text.find("</answer>", meeting.end(), line_end) >= 0:
            return True
        tried = line_end
    return False


def _line_end(text: str, start: int) -> int:
    end = text.find("\n", start)
    return len(text) if end < 0 else end


def _holds_reasoning_and_letter(text: str) -> bool:
    start = text.find("<reasoning>")
    end = text.find("</reasoning>", start) if start >= 0 else -1
    opened = text.find("<answer>", end) if end >= 0 else -1
    while opened >= 0:
        closed = text.find("</answer>", opened)
        if closed < 0:
            return False
        if _LETTER.search(text, opened + len("<answer>"), closed):
            return True
        opened = text.find("<answer>", closed)
    return False
