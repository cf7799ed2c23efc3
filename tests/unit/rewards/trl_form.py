"""Calls a reward as the scorer does, on text and on chat messages."""

from __future__ import annotations

from typing import Any

import pytest


def check(reward: Any, table: dict[str, float | None], **columns: Any) -> None:
    """Every text of the table earns its score, as a string and as a chat message.

    Args:
        reward: function or object.
        table: text to expected score.
        columns: one value each, the same for every row.
    """
    texts = list(table)
    keywords = {name: [value] * len(texts) for name, value in columns.items()}
    chats = [[{"role": "assistant", "content": text}] for text in texts]
    for completions in (texts, chats):
        scores = reward(prompts=["?"] * len(texts), completions=completions, **keywords)
        assert dict(zip(texts, scores, strict=True)) == pytest.approx(table)
        assert all(score is None or type(score) is float for score in scores)
