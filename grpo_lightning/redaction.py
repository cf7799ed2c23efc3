"""Passwords and keys that were given as options, left out of what others may get to see."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import yaml

HIDDEN = "***"
SECRET = frozenset({"key", "token", "password", "secret"})
WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
USER = re.compile(r"(\w://)[^/\s@'\"]+@")
"""What stands before the host in a URL: a name, and often a password."""
PAIR = re.compile(
    r"""(?<![\w.-])(?P<name>[\w.-]+)(?P<between>['"]?\s*[:=]\s*)"""
    r"""(?P<value>"[^"]*"|'[^']*'|[^\s,{}\[\]"'][^\s,}\]]*)"""
)
PLAIN = frozenset({"true", "false", "null", "none"})


def is_secret(option: str) -> bool:
    """True for ``api_key``, ``hfToken``, ``--trainer.logger.init_args.password``; not for ``micro_batch_tokens``."""
    return not SECRET.isdisjoint(word.lower() for word in WORDS.findall(option))


def redacted_command(words: Sequence[str]) -> list[str]:
    """A command line without the values of secret options: ``--a.key x``, ``--a.key=x``, and inside values."""
    found, hide = [], False
    for word in words:
        option = word.startswith("--")
        if hide and not option:
            word = _hidden(word)
        elif option and "=" in word and is_secret(word.partition("=")[0]):
            name, _, value = word.partition("=")
            word = f"{name}={_hidden(value)}"
        found.append(redacted_text(word))
        hide = option and "=" not in word and is_secret(word)
    return found


def redacted_text(text: str) -> str:
    """Any text, without users in URLs and without what stands behind a secret name and ``:`` or ``=``."""

    def without(pair: re.Match[str]) -> str:
        value = pair["value"]
        return f"{pair['name']}{pair['between']}{_hidden(value)}" if is_secret(pair["name"]) else pair[0]

    return PAIR.sub(without, USER.sub(rf"\1{HIDDEN}@", text))


def redacted_yaml(text: str) -> str:
    """A configuration without secret values; as it was written if it has none."""
    try:
        content = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        changed = _hide(content, set())
        text = yaml.safe_dump(content, allow_unicode=True, sort_keys=False) if changed else text
    except (yaml.YAMLError, ValueError, TypeError, RecursionError):
        text = redacted_text(text)
    return USER.sub(rf"\1{HIDDEN}@", text)


def _hide(node: Any, seen: set[int]) -> bool:
    """Hide in place; True if something was. An alias, which stands for a node that was seen, is not gone into again."""
    if not isinstance(node, dict | list) or id(node) in seen:
        return False
    seen.add(id(node))
    changed = False
    for key, value in list(node.items() if isinstance(node, dict) else enumerate(node)):
        if isinstance(node, dict) and is_secret(str(key)) and _holds_text(value):
            node[key], changed = HIDDEN, True
        else:
            changed = _hide(value, seen) or changed
    return changed


def _holds_text(value: Any) -> bool:
    return (isinstance(value, str) and bool(value)) or (isinstance(value, list) and any(map(_holds_text, value)))


def _hidden(value: str) -> str:
    return value if value.lower() in PLAIN or not value else HIDDEN
