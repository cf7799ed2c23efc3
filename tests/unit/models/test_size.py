"""Weights and bytes before anything is loaded."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from grpo_lightning.data.tiny_model import build_tiny_model
from grpo_lightning.models.adapters import LoRA
from grpo_lightning.models.size import count_weights, in_words, state_bytes


def test_weights_are_counted_as_they_are_loaded(tmp_path: Path) -> None:
    folder = str(build_tiny_model(str(tmp_path), hidden=32, layers=2, mlp=64))
    loaded = sum(p.numel() for p in AutoModelForCausalLM.from_pretrained(folder).parameters())
    assert count_weights(folder) == {"all": loaded, "trained": loaded}
    # Rank 4 on queries and outputs (32 + 32), keys and values (32 + 16 each), three of the MLP (32 + 64 each).
    trained = 2 * 4 * (2 * 64 + 2 * 48 + 3 * 96)
    assert count_weights(folder, adapter=LoRA(r=4)) == {"all": loaded, "trained": trained}


def fails(*arguments: Any, **settings: Any) -> Any:
    raise RuntimeError("needs a GPU")


@pytest.mark.parametrize(
    ("factory", "expected"),
    [
        (None, 8.0),
        (functools.partial(torch.optim.SGD), 0.0),
        (functools.partial(torch.optim.SGD, momentum=0.9), 4.0),
        (functools.partial(torch.optim.Adam, amsgrad=True), 12.0),
        (fails, 8.0),
    ],
)
def test_an_optimizers_state(factory: Any, expected: float) -> None:
    assert state_bytes(factory) == expected


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 kB"), (1500, "1.5 kB"), (2e6, "2 MB"), (999.9e6, "1 GB"), (2.345e9, "2.35 GB"), (1.234e12, "1,234 GB")],
)
def test_words(size: float, text: str) -> None:
    assert in_words(size) == text
