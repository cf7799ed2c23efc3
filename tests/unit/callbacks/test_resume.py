from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from grpo_lightning import ranks
from grpo_lightning.callbacks.resume import ExactResume


def _draws(step: int, *, evaluating: bool = False) -> tuple[float, ...]:
    trainer, callback = SimpleNamespace(global_step=step), ExactResume()
    (callback.on_validation_start if evaluating else callback.on_train_batch_start)(trainer)  # type: ignore[arg-type]
    return random.random(), float(np.random.random()), float(torch.rand(()))


def test_draws_are_those_of_step_rank_seed_and_purpose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PL_GLOBAL_SEED", "1")
    first = _draws(3)
    found = [_draws(4), _draws(3, evaluating=True)]
    assert _draws(3) == first  # whatever was drawn in between
    monkeypatch.setattr(ranks, "rank", lambda: 1)
    found.append(_draws(3))
    monkeypatch.setattr(ranks, "rank", lambda: 0)
    monkeypatch.setenv("PL_GLOBAL_SEED", "2")
    found.append(_draws(3))
    for draws in zip(first, *found, strict=True):
        assert len(set(draws)) == 5
