"""Right replies to a prompt, made of its data row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grpo_lightning.data.answer_formats import ANSWER_FORMATS, AnswerFormat
from grpo_lightning.types import Prompt

WORK = "..."
"""Stands for the reasoning in rows that have no worked solution."""


def right_replies(
    prompt: Prompt, asked: AnswerFormat, *, column: str, read: Callable[[Any], str | None] = str
) -> list[str]:
    """What a model could write that knows the answer, the likeliest first; nothing for a row without a gold.

    Args:
        prompt: with its data row.
        asked: the layout that the prompt asks for.
        column: that the reward judges by, ``answer`` or ``solution``.
        read: from the row's ``answer`` to what a right reply gives.
    """
    answer, solution = (prompt.columns.get(name) for name in ("answer", "solution"))
    solution = solution if isinstance(solution, str) and solution.strip() else None
    gold = None if answer is None else read(answer)
    golds = [gold] if gold and gold.strip() else []
    if column == "solution" and solution:
        golds = [f"```python\n{solution}\n```", solution, *golds]
    formats = [asked]
    if asked is ANSWER_FORMATS["none"]:
        # The prompt leaves the layout open, or asks in words of its own: whatever the reward looks for is right.
        formats += ANSWER_FORMATS.values()
    replies = []
    for answer_format in formats:
        for gold in golds:
            work = WORK if solution is None or solution in gold else solution
            replies += [answer_format.show(gold), answer_format.show(gold, work)]
    if golds and solution and asked is ANSWER_FORMATS["none"]:
        replies.append(solution)
    return replies


def continuation(prefill: str, reply: str) -> str:
    """The reply as a model would write it where the prompt's template has opened ``<think>`` or ``<reasoning>``."""
    opened = prefill.strip()
    if not opened or "</" in opened:
        return reply
    if reply.startswith(opened):
        return reply.removeprefix(opened).lstrip()
    return f"\n{opened.replace('<', '</')}\n{reply}"
