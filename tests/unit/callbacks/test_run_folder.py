"""What a resumed run does with the evaluations behind its checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo_lightning.callbacks import run_folder
from grpo_lightning.callbacks.run_folder import put_aside
from grpo_lightning.records import read_records, write_records

LINES = [{"step": step, "source": "one\u2028line\x85"} for step in (0, 2, 4)]


def test_later_evaluations_are_put_aside(tmp_path: Path) -> None:
    file, spare = tmp_path / "evaluations.jsonl", tmp_path / "evaluations-1.jsonl"
    write_records(file, LINES)
    before = file.read_bytes()
    put_aside(tmp_path, step=4, rollouts=4)
    assert (file.read_bytes(), spare.exists()) == (before, False)
    with file.open("a") as half:
        half.write('{"step": 4, "so')
    before = file.read_bytes()
    put_aside(tmp_path, step=2, rollouts=2)
    assert read_records(file) == LINES[:2]
    assert before.startswith(file.read_bytes())
    assert spare.read_bytes() == before


def test_a_kill_on_the_way_loses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    file = tmp_path / "evaluations.jsonl"
    write_records(file, LINES)
    monkeypatch.setattr(run_folder, "write_records", killed)
    with pytest.raises(KeyboardInterrupt):
        put_aside(tmp_path, step=2, rollouts=2)
    assert read_records(file) == LINES
