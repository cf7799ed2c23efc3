"""Taking an answer apart at signs that stand outside every bracket."""

from __future__ import annotations

import re

_OPEN, _CLOSE = "([{⟦", ")]}⟧"
RELATION = re.compile(r"\\(?:le|ge|ne|approx|in|equiv|sim|to|mapsto|Rightarrow|implies|mid)(?![A-Za-z])|[=<>]")


def stripped(text: str) -> str:
    """Without braces round the whole, and without closing punctuation."""
    while text[:1] == "{" and matching(text, 0) == len(text) - 1:
        text = text[1:-1].strip()
    return text


def matching(text: str, start: int) -> int:
    """Index of the bracket that closes the one at ``start`` (kinds may differ, as in ``(0,1]``); -1 if none."""
    depth = 0
    for index in range(start, len(text)):
        depth += (text[index] in _OPEN) - (text[index] in _CLOSE)
        if depth == 0:
            return index
    return -1


def split(text: str, separators: str | list[str]) -> list[str]:
    """Parts between separators that stand outside every bracket and environment."""
    parts, depth, start, index = [], 0, 0, 0
    while index < len(text):
        if text.startswith((r"\begin", r"\end"), index):
            depth += 1 if text.startswith(r"\begin", index) else -1
            index += 4
            continue
        depth += (text[index] in _OPEN) - (text[index] in _CLOSE)
        hit = next((s for s in separators if depth == 0 and text.startswith(s, index)), None)
        if hit:
            parts.append(text[start:index])
            start = index + len(hit)
        index += len(hit) if hit else 1
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def relation_parts(text: str) -> tuple[list[str], list[str]]:
    """Sides and signs of the relations that stand outside every bracket."""
    sides, signs, depth, start, position = [], [], 0, 0, 0
    for match in RELATION.finditer(text):
        between = text[position : match.start()]
        depth += sum((c in _OPEN) - (c in _CLOSE) for c in between)
        position = match.end()
        if depth == 0 and r"\begin" not in text[: match.start()]:
            sides.append(text[start : match.start()].strip())
            signs.append(match.group())
            start = match.end()
    return [*sides, text[start:].strip()], signs
