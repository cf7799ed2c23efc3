"""Text that a page can hold."""

from __future__ import annotations

LONGEST = 300
"""Characters of a value."""


def clean(text: str) -> str:
    """Text that UTF-8 can hold: half a surrogate pair becomes ``?``."""
    return text.encode("utf-8", "replace").decode("utf-8")


def shortened(text: str, most: int = LONGEST) -> str:
    """At most ``most`` characters, which UTF-8 can hold."""
    return clean(text if len(text) <= most else text[:most] + "…")
