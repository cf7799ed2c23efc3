r"""Counted tags: partial credit while the layout is still being learned. ⏎ stands for a line break.

Sources: the tag counts of the GSM8K recipe with five rewards (four tags), of the recipe for multiple-choice logic
(three tags) and of open-r1. Exactly one occurrence of a tag counts; more earn nothing, so that repeating it does
not pay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grpo_lightning.rewards.completions import completion_text
from grpo_lightning.rewards.marks import inline

TAG = 0.125
PER_CHARACTER = 0.001


@inline
def xml_count(completions: Sequence[Any], **_: Any) -> list[float | None]:
    r"""0.125 each for exactly one ``<reasoning>⏎``, ``⏎</reasoning>⏎``, ``⏎<answer>⏎``, ``⏎</answer>``; at most 0.5.

    With the third, 0.001 per character after the last ``⏎</answer>⏎`` is taken off; with the fourth, 0.001 per
    character after it beyond the first. May go negative.

    Source: ``xmlcount_reward_func`` of the GSM8K recipe with five rewards. As published, a reply without
    ``⏎</answer>⏎`` pays for all of its characters: see ``xml_count_as_published``.
    """
    return [_four_tags(completion_text(completion)) for completion in completions]


@inline
def xml_count_as_published(completions: Sequence[Any], **_: Any) -> list[float | None]:
    r"""``xml_count`` by ``text.split(tag)[-1]``, which is the whole text where the tag is missing.

    A reply that stops right after ``</answer>`` thus loses 0.001 per character of the whole reply, and gains 0.001 for
    the missing line break. Source: ``count_xml`` of the GSM8K recipe with five rewards.
    """
    return [_four_tags_as_published(completion_text(completion)) for completion in completions]


@inline
def xml_count_three_tags(completions: Sequence[Any], **_: Any) -> list[float | None]:
    r"""0.125 each for exactly one ``<reasoning>⏎``, ``⏎</reasoning>⏎``, ``⏎</answer>``; 0 to 0.375.

    0.001 per character after the last ``⏎</answer>`` beyond the first is taken off, down to 0.
    Source: xml count of the recipe for multiple-choice logic.
    """
    return [_three_tags(completion_text(completion)) for completion in completions]


@inline
def tag_count(completions: Sequence[Any], **_: Any) -> list[float | None]:
    r"""0.25 each for exactly one ``<think>⏎``, ``⏎</think>⏎``, ``⏎<answer>⏎``, ``⏎</answer>``.

    Source: open-r1's ``tag_count_reward``.
    """
    tags = ("<think>\n", "\n</think>\n", "\n<answer>\n", "\n</answer>")
    return [0.25 * sum(text.count(tag) == 1 for tag in tags) for text in map(completion_text, completions)]


def _four_tags(text: str) -> float:
    score = TAG * sum(text.count(tag) == 1 for tag in ("<reasoning>\n", "\n</reasoning>\n"))
    if text.count("\n<answer>\n") == 1:
        score += TAG - PER_CHARACTER * _characters_after(text, "\n</answer>\n")
    if text.count("\n</answer>") == 1:
        score += TAG - PER_CHARACTER * max(_characters_after(text, "\n</answer>") - 1, 0)
    return score


def _four_tags_as_published(text: str) -> float:
    score = TAG * sum(text.count(tag) == 1 for tag in ("<reasoning>\n", "\n</reasoning>\n"))
    if text.count("\n<answer>\n") == 1:
        score += TAG - PER_CHARACTER * len(text.split("\n</answer>\n")[-1])
    if text.count("\n</answer>") == 1:
        score += TAG - PER_CHARACTER * (len(text.split("\n</answer>")[-1]) - 1)
    return score


def _three_tags(text: str) -> float:
    score = TAG * sum(text.count(tag) == 1 for tag in ("<reasoning>\n", "\n</reasoning>\n", "\n</answer>"))
    return max(score - PER_CHARACTER * max(_characters_after(text, "\n</answer>") - 1, 0), 0.0)


def _characters_after(text: str, tag: str) -> int:
    """Characters after the last occurrence; 0 if there is none."""
    _, found, after = text.rpartition(tag)
    return len(after) if found else 0
