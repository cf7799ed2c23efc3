"""Checks of what a reward's constructor is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from grpo_lightning.errors import UserError

ValueT = TypeVar("ValueT")


def one_of(reward: str, name: str, value: ValueT, allowed: Sequence[ValueT]) -> ValueT:
    """The value, if it is one of the allowed ones.

    Raises:
        UserError: if it is not.
    """
    if value not in allowed:
        raise UserError(f"{reward}: {name} {value!r} is not known; take one of {', '.join(map(str, allowed))}")
    return value


def at_least(reward: str, name: str, value: int, least: int) -> int:
    """The value, if it is a whole number of at least ``least``.

    Raises:
        UserError: if it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UserError(f"{reward}: {name} {value!r} must be a whole number of at least {least}")
    return value
