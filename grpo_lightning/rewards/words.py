"""Parts of a text that several rewards look at: what stands between tags, and its words."""

from __future__ import annotations

import re

HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
"""Chinese characters, as ranges for a regular expression's brackets."""
KANA = "\u3040-\u30ff"
_WORD = re.compile(rf"[{HAN}{KANA}]|[^\s{HAN}{KANA}]+")


def words(text: str) -> list[str]:
    """The text cut at white space; a Chinese or Japanese character, which nothing separates, is a word by itself."""
    return _WORD.findall(text)


def last_inside(text: str, tag: str) -> str | None:
    """What stands between the last ``<tag>`` and the ``</tag>`` after it, or None if either is missing."""
    _, opened, rest = text.rpartition(f"<{tag}>")
    content, closed, _ = rest.partition(f"</{tag}>")
    return content if opened and closed else None


def reasoning(text: str) -> str:
    """What stands between the first ``<reasoning>`` or ``<think>`` and its closing tag; "" without both tags."""
    for tag in ("reasoning", "think"):
        _, opened, rest = text.partition(f"<{tag}>")
        content, closed, _ = rest.partition(f"</{tag}>")
        if opened and closed:
            return content
    return ""
