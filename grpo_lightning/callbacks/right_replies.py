"""Right replies to a prompt, made of its data row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from grpo_lightning.data.answer_formats import ANSWER_FORMATS, AnswerFormat, continuation
from grpo_lightning.types import Completion, Prompt

WORK = "..."
"""Stands for the reasoning in rows that have no worked solution."""


class Reply(NamedTuple):
    """What a model could write."""

    text: str
    layout: str = ""
    """Name of the answer format, where it is one that the prompt does not ask for."""


def right_replies(
    prompt: Prompt, asked: AnswerFormat, *, column: str, read: Callable[[Any], str | None] = str
) -> list[Reply]:
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
    replies = [Reply(text) for gold in golds for text in _shown(asked, gold, solution)]
    if golds and asked is ANSWER_FORMATS["none"]:
        # The prompt leaves the layout open, or asks in words of its own: whatever the reward looks for is right.
        replies += [Reply(solution)] if solution else []
        for name, answer_format in ANSWER_FORMATS.items():
            replies += [Reply(text, name) for gold in golds for text in _shown(answer_format, gold, solution)]
    return replies


def _shown(answer_format: AnswerFormat, gold: str, solution: str | None) -> list[str]:
    work = WORK if solution is None or solution in gold else solution
    return [answer_format.show(gold), answer_format.show(gold, work)]


def as_completion(prompt: Prompt, reply: str, tokenizer: PreTrainedTokenizerBase) -> Completion:
    """A reply as if the policy had written it after this prompt."""
    text = continuation(prompt.prefill, reply)
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    return Completion(token_ids=token_ids, logprobs=[0.0] * len(token_ids), finished=True, text=text)
