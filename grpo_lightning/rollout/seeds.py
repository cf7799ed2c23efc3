"""One seed for every request, wherever it runs."""

from __future__ import annotations

import hashlib


def request_seed(run_seed: int, purpose: str, rollout: int, attempt: int, position: int) -> int:
    """A 62-bit hash, far from those of its neighbours.

    Samplers give child i of a request the seed + i, so neighbouring seeds would share samples; ranks that seed by their
    own number would draw other samples than one process does. The position is that in the *global* prompt batch.

    Args:
        run_seed: of the whole run.
        purpose: keeps training and evaluation apart.
        rollout: number of the rollout.
        attempt: which try at this rollout's prompts.
        position: of the prompt among all prompts of the rollout.
    """
    text = f"{run_seed}/{purpose}/{rollout}/{attempt}/{position}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 2
