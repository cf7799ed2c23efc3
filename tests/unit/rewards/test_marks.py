"""Marks on functions, objects and what arguments are bound to."""

from __future__ import annotations

import functools
from typing import Any

from grpo_lightning.rewards.marks import best, inline, innermost, marked


@inline
@best(2.0)
def right(completions: list[Any], factor: float = 1.0) -> list[float]:
    return [factor] * len(completions)


def plain(completions: list[Any]) -> list[float]:
    return [0.0] * len(completions)


def test_marks_pass_through_bound_arguments() -> None:
    bound = functools.partial(functools.partial(right, factor=2.0))
    assert (marked(bound, "inline"), marked(bound, "best")) == (True, 2.0)
    assert innermost(bound) is right
    assert marked(functools.partial(plain), "best", "none") == "none"
    bound.best = 4.0  # type: ignore[attr-defined]  # its own comes first: the factor is 2
    assert marked(bound, "best") == 4.0
