"""A reward that draws, in a module that takes its process no longer to import than torch does."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from tests.integration.reward_functions import share_of_digits


def noisy_digits(completions: list[Any], **kwargs: Any) -> list[float]:
    """Draws from every random stream of the process."""
    noise = [random.random() + np.random.random() + float(torch.rand(())) for _ in completions]
    return [score + 0.1 * extra for score, extra in zip(share_of_digits(completions), noise, strict=True)]
