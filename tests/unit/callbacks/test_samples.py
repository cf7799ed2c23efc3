"""The lines of a recorded rollout."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from grpo_lightning.callbacks.samples import SamplesCallback
from grpo_lightning.errors import UserError
from grpo_lightning.types import Completion, Prompt, PromptBatch, Rollout, ScoredPrompts


def _batch() -> PromptBatch:
    prompts = [Prompt(token_ids=[1], text=f"Q{p}", columns={"answer": str(p)}, source="s", row=p) for p in range(2)]
    batch = PromptBatch(prompts)
    batch.rollout = Rollout(
        prompts=prompts,
        positions=[0, 1],
        completions=[
            [Completion(token_ids=[7], logprobs=[0.0], finished=True, text=f"{p}{g}") for g in range(2)]
            for p in range(2)
        ],
        rewards=torch.tensor([[1.0, 0.0], [float("nan"), 0.5]], dtype=torch.float64),
        reward_terms={"some": torch.tensor([[1.0, float("nan")], [float("nan"), 0.5]], dtype=torch.float64)},
        sampled=ScoredPrompts([], [], torch.zeros(0), {}),
        advantages=torch.tensor([[0.5, -0.5], [0.0, 0.0]]),
        windows=[],
        passes=1,
        temperature=1.0,
        metrics={},
        logged_columns={
            "share": [np.float32(i / 4) for i in range(4)],
            "at": list(torch.arange(4)),
            "why": [set()] * 4,
        },
    )
    return batch


def _trainer(folder: Path, batches: int) -> Any:
    return SimpleNamespace(default_root_dir=str(folder), fit_loop=SimpleNamespace(total_batch_idx=batches))


def test_one_line_per_completion(tmp_path: Path) -> None:
    SamplesCallback(every_n_rollouts=1).on_train_batch_end(_trainer(tmp_path, 0), cast(Any, None), None, _batch(), 0)
    text = (tmp_path / "samples" / "rollout_000001.jsonl").read_text("utf-8")
    assert "NaN" not in text
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["completion"] for line in lines] == ["00", "01", "10", "11"]
    assert [line["row"] for line in lines] == [0, 0, 1, 1]
    assert [line["reward"] for line in lines] == [1.0, 0.0, None, 0.5]
    assert [line["rewards"]["some"] for line in lines] == [1.0, None, None, 0.5]
    assert [line["advantage"] for line in lines] == [0.5, -0.5, 0.0, 0.0]
    assert [line["share"] for line in lines] == [0.0, 0.25, 0.5, 0.75]
    assert [line["at"] for line in lines] == [0, 1, 2, 3]
    assert lines[0]["why"] == "set()"


@pytest.mark.parametrize(("every", "written"), [(0, []), (1, [1, 2, 3, 4]), (3, [1, 4])])
def test_every_nth_rollout(tmp_path: Path, every: int, written: list[int]) -> None:
    for done in range(4):
        SamplesCallback(every_n_rollouts=every).on_train_batch_end(
            _trainer(tmp_path, done), cast(Any, None), None, _batch(), done
        )
    names = sorted(path.name for path in tmp_path.glob("samples/*"))
    assert names == [f"rollout_{number:06d}.jsonl" for number in written]


def test_a_negative_interval_is_refused() -> None:
    with pytest.raises(UserError, match=r"--samples.every_n_rollouts -1: must not be negative"):
        SamplesCallback(every_n_rollouts=-1)
