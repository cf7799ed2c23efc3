from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from grpo_lightning import ranks
from grpo_lightning.callbacks.resume import ExactResume
from grpo_lightning.files import draft_of


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


def test_drafts_of_a_killed_run_go_and_nothing_of_the_user_s(tmp_path: Path) -> None:
    """Whether checkpoints are written or not."""
    names = ["metrics.csv", "samples/rollout_1.parquet", "broken/step1.pt", "checkpoints/step1.ckpt"]
    for file in [*(draft_of(tmp_path / name) for name in names), *(tmp_path / f"{name}.partial" for name in names)]:
        file.parent.mkdir(exist_ok=True)
        file.write_text("half")
    trainer: Any = SimpleNamespace(is_global_zero=True, default_root_dir=str(tmp_path), checkpoint_callbacks=[])
    ExactResume().on_fit_start(trainer, None)  # type: ignore[arg-type]
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {f"{name}.partial" for name in names}
