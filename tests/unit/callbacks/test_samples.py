"""The table of a recorded rollout."""

from __future__ import annotations

import logging
import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from grpo_lightning.callbacks.rollout import RolloutCallback
from grpo_lightning.callbacks.samples import COLUMNS, SamplesCallback, answer_reader
from grpo_lightning.errors import UserError
from grpo_lightning.files import draft_of
from grpo_lightning.rewards import GSM8KAccuracy, exact_answer, gsm8k_accuracy
from grpo_lightning.rewards.scoring.calling import CallLog
from grpo_lightning.types import Completion, Prompt, PromptBatch, Rollout, ScoredPrompts


def _batch() -> PromptBatch:
    prompts = [Prompt(token_ids=[1], text=f"Q{p}", columns={"answer": str(p)}, source="s", row=p) for p in range(2)]
    batch = PromptBatch(prompts)
    batch.rollout = Rollout(
        prompts=prompts,
        positions=[0, 1],
        completions=[
            [
                Completion(token_ids=[7] * (g + 1), logprobs=[0.0], finished=g == 0, text=f"#### {p}{g}")
                for g in range(2)
            ]
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
            "why": [{"set": set()}] * 4,
            "reward": [9.0] * 4,
        },
    )
    return batch


def _trainer(folder: Path, batches: int) -> Any:
    return SimpleNamespace(
        default_root_dir=str(folder),
        fit_loop=SimpleNamespace(total_batch_idx=batches),
        global_step=2 * batches + 2,
        callbacks=[RolloutCallback(rewards=[_no_answer, gsm8k_accuracy])],
        loggers=[],
    )


def _no_answer(completions: list[str], **_: Any) -> list[float]:
    return [0.0] * len(completions)


def _write(callback: SamplesCallback, folder: Path, batches: int = 0) -> None:
    callback.on_train_batch_end(_trainer(folder, batches), cast(Any, None), None, _batch(), batches)


def test_one_row_per_completion(tmp_path: Path) -> None:
    _write(SamplesCallback(every_n_rollouts=2), tmp_path, batches=4)
    table = pq.read_table(tmp_path / "samples" / "rollout_000005.parquet")
    assert table.column_names == [*COLUMNS, "share", "at", "why", "rewards/some"]
    assert [str(table.schema.field(name).type) for name in ("share", "at", "why")] == ["double", "int64", "string"]
    assert table.to_pydict() == {
        "rollout": [5] * 4,
        "step": [10] * 4,
        "group": [0, 0, 1, 1],
        "source": ["s"] * 4,
        "row": [0, 0, 1, 1],
        "prompt": ["Q0", "Q0", "Q1", "Q1"],
        "completion": ["#### 00", "#### 01", "#### 10", "#### 11"],
        "answer": ["0", "0", "1", "1"],
        "extracted": ["00", "01", "10", "11"],
        "reward": [1.0, 0.0, None, 0.5],
        "advantage": [0.5, -0.5, 0.0, 0.0],
        "finish_reason": ["stop", "length"] * 2,
        "prompt_tokens": [1] * 4,
        "completion_tokens": [1, 2, 1, 2],
        "share": [0.0, 0.25, 0.5, 0.75],
        "at": [0, 1, 2, 3],
        "why": ['{"set": "set()"}'] * 4,
        "rewards/some": [1.0, None, None, 0.5],
    }
    assert [path.name for path in (tmp_path / "samples").iterdir()] == ["rollout_000005.parquet"]


def test_the_reader_of_the_first_reward_that_has_one() -> None:
    assert answer_reader([_no_answer])("#### 7") is None
    assert answer_reader([_no_answer, partial(exact_answer)])("#### 7 <answer> 8 </answer>") == "8"
    assert answer_reader([GSM8KAccuracy(flexible=True)])("5 and 9") == "9"
    assert answer_reader([GSM8KAccuracy()])("#### 1,005. Or 9") == "1005"
    assert answer_reader([SimpleNamespace(answer_reader=lambda text: 1 / 0)])("#### 7") is None


def test_a_table_that_cannot_be_written_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "samples").write_text("a file where the folder should be")
    callback = SamplesCallback(every_n_rollouts=1)
    logging.getLogger("grpo_lightning").propagate = True
    for done in range(2):
        _write(callback, tmp_path, done)
    (message,) = [record.getMessage() for record in caplog.records]
    assert message == "WARNING: the table of samples: File exists; training goes on without it"


@pytest.mark.skipif(not Path("/dev/full").exists() or os.name != "posix", reason="no /dev/full here")
def test_a_full_disk_leaves_the_older_table(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    callback, file = SamplesCallback(every_n_rollouts=1), tmp_path / "samples" / "rollout_000001.parquet"
    _write(callback, tmp_path)
    before = file.read_bytes()
    draft_of(file).symlink_to("/dev/full")
    logging.getLogger("grpo_lightning").propagate = True
    _write(callback, tmp_path)
    assert "No space left" in caplog.text
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize(("every", "written"), [(0, []), (1, [1, 2, 3, 4]), (3, [1, 4])])
def test_every_nth_rollout(tmp_path: Path, every: int, written: list[int]) -> None:
    for done in range(4):
        _write(SamplesCallback(every_n_rollouts=every), tmp_path, done)
    names = sorted(path.name for path in tmp_path.glob("samples/*"))
    assert names == [f"rollout_{number:06d}.parquet" for number in written]


def test_a_negative_interval_is_refused() -> None:
    with pytest.raises(UserError, match=r"--samples.every_n_rollouts -1: must not be negative"):
        SamplesCallback(every_n_rollouts=-1)


def test_a_column_that_no_table_holds_does_not_end_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    batch = _batch()
    assert batch.rollout is not None
    batch.rollout.logged_columns = {"big": [2**53 + 1, 0.5, 1, 2]}
    SamplesCallback(every_n_rollouts=1).on_train_batch_end(_trainer(tmp_path, 0), cast(Any, None), None, batch, 0)
    table = pq.read_table(tmp_path / "samples" / "rollout_000001.parquet")
    assert table["big"].to_pylist() == [str(2**53 + 1), "0.5", "1", "2"]
    batch.rollout.logged_columns = {cast(Any, 5): [1, 2, 3, 4]}
    logging.getLogger("grpo_lightning").propagate = True
    callback = SamplesCallback(every_n_rollouts=1, shown=0)
    callback.on_train_batch_end(_trainer(tmp_path, 1), cast(Any, None), None, batch, 1)
    assert "the table of samples: " in caplog.text


def test_columns_of_log_extra_are_named_by_text() -> None:
    log = CallLog(2)
    log.extra(cast(Any, 5), [1, 2])
    assert log.columns == {"5": [1, 2]}
