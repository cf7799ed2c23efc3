"""What a page shows of the tables of samples, and how little at most."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from grpo_lightning.callbacks.samples import COLUMNS
from grpo_lightning.files import draft_of
from grpo_lightning.report.samples import LONGEST_TEXT, MOST_ROLLOUTS, OWN, read_samples
from tests.unit.report.run_folders import write_samples


def test_groups_with_all_that_was_recorded(tmp_path: Path) -> None:
    write_samples(tmp_path, 3, [f"text {i}" for i in range(8)], mine=[1, 2])
    found = read_samples(tmp_path / "samples", most=100, notes=[])
    assert (found.shown, found.recorded, found.tables) == (8, 8, 1)
    (rollout,) = found.rollouts
    assert (rollout["rollout"], rollout["step"], len(rollout["groups"])) == (3, 3, 2)
    group = rollout["groups"][1]
    assert {name: group[name] for name in group if name != "completions"} == {
        "group": 1, "source": "train", "row": 8, "prompt": "question 1", "prompt_tokens": 3, "answer": "4",
    }  # fmt: skip
    assert group["completions"][1] == {
        "text": "text 5", "extracted": None, "reward": 0.0, "advantage": -0.5, "finish": "length", "tokens": 6,
        "terms": {"right": 0.0}, "extras": {"mine": "[1, 2]"},
    }  # fmt: skip


def test_rollouts_are_taken_evenly_and_groups_whole(tmp_path: Path) -> None:
    for rollout in range(1, 101):
        write_samples(tmp_path, rollout, ["x"] * 12)
    found = read_samples(tmp_path / "samples", most=250, notes=[])
    numbers = [rollout["rollout"] for rollout in found.rollouts]
    assert (len(numbers), numbers[0], numbers[-1], found.recorded) == (MOST_ROLLOUTS, 1, 100, 1200)
    assert {len(group["completions"]) for rollout in found.rollouts for group in rollout["groups"]} == {4}
    assert found.shown <= 250
    assert {len(rollout["groups"]) for rollout in found.rollouts} == {1, 2}


def test_long_texts_keep_both_ends(tmp_path: Path) -> None:
    write_samples(tmp_path, 1, ["a" * 5_000 + "b" * 5_000, "c" * LONGEST_TEXT, "", "d"])
    texts = [
        c["text"] for c in read_samples(tmp_path / "samples", most=9, notes=[]).rollouts[0]["groups"][0]["completions"]
    ]
    assert texts[0] == "a" * 1_500 + "\n… [7,000 characters left out] …\n" + "b" * 1_500
    assert texts[1:] == ["c" * LONGEST_TEXT, "", "d"]


def test_tables_that_cannot_be_read_are_noted(tmp_path: Path) -> None:
    write_samples(tmp_path, 1, ["x"] * 4)
    whole = write_samples(tmp_path, 2, ["x"] * 4).read_bytes()
    (tmp_path / "samples" / "rollout_000002.parquet").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "samples" / "rollout_000003.parquet").write_bytes(b"")
    draft_of(tmp_path / "samples" / "rollout_000004.parquet").write_bytes(whole)
    (tmp_path / "samples" / "rollout_x.parquet").write_bytes(whole)
    notes: list[str] = []
    found = read_samples(tmp_path / "samples", most=100, notes=notes)
    assert [rollout["rollout"] for rollout in found.rollouts] == [1]
    assert [note.partition(" ")[0] for note in notes] == ["rollout_000002.parquet", "rollout_000003.parquet"]
    assert read_samples(tmp_path / "nowhere", most=100, notes=[]).rollouts == []


def test_foreign_columns_and_types_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "samples").mkdir()
    table = pa.table({"completion": [[1, 2]], "reward": ["high"], "group": [None], "when": [{"a": b"\xff"}]})
    pq.write_table(table, tmp_path / "samples" / "rollout_000001.parquet")
    found = read_samples(tmp_path / "samples", most=10, notes=[])
    assert found.rollouts[0]["groups"][0]["completions"][0]["text"] == "[1, 2]"
    json.dumps(found.rollouts, allow_nan=False)


@pytest.mark.parametrize(
    "odd", [[1], float("nan"), datetime(2026, 1, 1, tzinfo=UTC), pa.scalar(10**18, pa.timestamp("us")), b"\xff"]
)
def test_foreign_steps_and_groups_do_no_harm(tmp_path: Path, odd: Any) -> None:
    (tmp_path / "samples").mkdir()
    table = pa.table({name: pa.array([odd]) for name in ("step", "group", "completion", "mine")})
    pq.write_table(table, tmp_path / "samples" / "rollout_000001.parquet")
    found = read_samples(tmp_path / "samples", most=10, notes=[])
    json.dumps(found.rollouts, allow_nan=False)


def test_columns_of_every_table_are_no_extras() -> None:
    assert set(COLUMNS) == OWN
