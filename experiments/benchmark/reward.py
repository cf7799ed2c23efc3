"""A reward that costs nothing and teaches nothing, the same for both trainers, and differs within every group."""

from __future__ import annotations

from typing import Any

from grpo_lightning.rewards import inline

MODULUS = 1009


@inline
def token_reward(*, completion_ids: list[list[int]], **_: Any) -> list[float]:
    """A checksum of the tokens in [0, 1), plus 1 for every other completion.

    The checksum alone would be the same for a group of equal answers, and completions without a signal may be left out
    of the backward: then one trainer would gain by something that this comparison is not about.

    Args:
        completion_ids: of all completions, group by group.
    """
    return [number % 2 + checksum(ids) / MODULUS for number, ids in enumerate(completion_ids)]


def checksum(ids: list[int]) -> int:
    """Of token ids and their order, in [0, 1009)."""
    total = 0
    for token in ids:
        total = (31 * total + int(token) + 1) % MODULUS
    return total
