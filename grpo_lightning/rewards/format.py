r"""Does a completion keep the asked-for layout? 1.0 or 0.0; the answer itself is not looked at.

Both patterns use ``re.DOTALL`` and must match the whole text (white space at its ends is free). A tag that the prompt's
template has already opened is part of the completion by the time a reward sees it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from grpo_lightning.rewards.completions import completion_text

THINK_ANSWER_PATTERN = r"<think>.*</think>\s*<answer>.*</answer>"
"""As in open-r1's format reward, without its fixed line breaks."""
THINK_PATTERN = r"<think>.*</think>.*"
"""As in TRL's ``think_format_reward``: ``^<think>(?!.*<think>)(.*?)</think>.*$``."""


def think_answer_format(completions: Sequence[Any], **_: Any) -> list[float | None]:
    """1.0 for ``<think>...</think> <answer>...</answer>`` and nothing else, with exactly one of each tag."""
    tags = ("<think>", "</think>", "<answer>", "</answer>")
    return [_keeps(completion_text(completion), THINK_ANSWER_PATTERN, tags) for completion in completions]


def think_format(completions: Sequence[Any], **_: Any) -> list[float | None]:
    """1.0 for ``<think>...</think>`` followed by anything, with exactly one of each tag."""
    return [_keeps(completion_text(completion), THINK_PATTERN, ("<think>", "</think>")) for completion in completions]


def _keeps(text: str, pattern: str, tags: tuple[str, ...]) -> float:
    text = text.strip()
    # Tags are counted first: with one of each the pattern cannot backtrack far, whatever the text holds.
    once = all(text.count(tag) == 1 for tag in tags)
    return float(once and re.fullmatch(pattern, text, re.DOTALL) is not None)
