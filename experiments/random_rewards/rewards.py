"""A reward that knows nothing."""

from __future__ import annotations

import hashlib
from typing import Any

from grpo_lightning.rewards import completion_text, inline


@inline
def coin_toss(completions: list[Any], *, trainer_state: Any, **_: Any) -> list[float]:
    """1 or 0 with equal chance, whatever the completion says; the same again in a run that is repeated.

    Drawn by a hash of the optimizer step, the completion's place in the rollout and its text, so that equal completions
    of a group are paid differently.
    """
    step = trainer_state.global_step
    words = (f"{step}, {place}, {completion_text(completion)}" for place, completion in enumerate(completions))
    return [float(hashlib.sha256(word.encode()).digest()[0] % 2) for word in words]
