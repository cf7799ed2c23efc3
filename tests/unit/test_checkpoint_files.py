"""Checkpoints on a disk that is full, and cut off at any byte."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import torch

from grpo_lightning import checkpoint_files
from grpo_lightning.callbacks.checkpoint import newest_checkpoint, read_header
from grpo_lightning.checkpoint_files import CheckpointFiles, write
from grpo_lightning.files import DRAFT, draft_of, replacing


def state(step: int) -> dict[str, Any]:
    return {"state_dict": {"w": torch.full((500,), float(step))}, "global_step": step, "lr_schedulers": []}


class Full:
    """A file on a disk that has room for so many bytes more."""

    def __init__(self, file: BinaryIO, room: int) -> None:
        self.file, self.room = file, room

    def write(self, data: Any) -> int:
        size = len(data)
        if size > self.room:
            self.file.write(bytes(data)[: self.room])
            self.room = 0
            raise OSError(errno.ENOSPC, "No space left on device")
        self.room -= size
        return self.file.write(data)

    def flush(self) -> None:
        self.file.flush()

    def fileno(self) -> int:
        return self.file.fileno()


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Bytes that the next files may have."""
    found = {"bytes": 10**9}

    @contextmanager
    def on_small_disk(path: Path) -> Iterator[Any]:
        with replacing(path) as file:
            yield Full(file, found["bytes"])

    monkeypatch.setattr(checkpoint_files, "replacing", on_small_disk)
    return found


def test_a_full_disk_at_any_byte_leaves_the_older_checkpoint(tmp_path: Path, room: dict[str, int]) -> None:
    files, size = CheckpointFiles(), 0
    files.save_checkpoint(state(1), tmp_path / "step1.ckpt")
    size = (tmp_path / "step1.ckpt").stat().st_size
    for bytes_left in [0, 1, 63, 64, 65, *range(100, size, 331), size - 1]:
        room["bytes"] = bytes_left
        with pytest.raises(OSError, match="No space left on device"):
            write(state(2), tmp_path / "step2.ckpt")
        assert [path.name for path in tmp_path.iterdir()] == ["step1.ckpt"], bytes_left
    room["bytes"] = size
    write(state(2), tmp_path / "step2.ckpt")
    assert newest_checkpoint([tmp_path], resumable=True) == tmp_path / "step2.ckpt"


def test_older_ones_go_when_one_could_be_written_again(
    tmp_path: Path, room: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    """As Lightning asks for it: write, then remove the one before."""
    files, paths = CheckpointFiles(), [tmp_path / f"step{step}.ckpt" for step in range(1, 5)]
    for step, path in enumerate(paths, start=1):
        room["bytes"] = 100 if step in (2, 3) else 10**9
        files.save_checkpoint(state(step), path)
        if step > 1:
            files.remove_checkpoint(paths[step - 2])
        there = [paths[0]] if step < 4 else [paths[3]]
        assert list(tmp_path.iterdir()) == there
        assert files.failing == (step in (2, 3))
    assert [str(path) in caplog.text for path in paths] == [False, True, True, False]
    assert "No space left on device; training goes on" in caplog.text


def test_a_kill_at_any_byte_leaves_what_nobody_picks(tmp_path: Path) -> None:
    """Nor is what somebody copied half of a checkpoint."""
    write(state(1), tmp_path / "step1.ckpt")
    write(state(2), tmp_path / "whole")
    whole = (tmp_path / "whole").read_bytes()
    (tmp_path / "whole").unlink()
    for cut in [0, 1, *range(50, len(whole), 97), len(whole) - 1]:
        for half in (draft_of(tmp_path / "step2.ckpt"), tmp_path / "step2.ckpt"):
            half.write_bytes(whole[:cut])
            assert newest_checkpoint([tmp_path], resumable=True) == tmp_path / "step1.ckpt", (half.name, cut)
            half.unlink()
    assert draft_of(tmp_path / "x").name.endswith(DRAFT)


def test_the_step_inside_decides_and_not_the_file_s_time(tmp_path: Path) -> None:
    for name, step, time in (("a", 30, 100), ("b", 9, 300), ("last", 20, 200)):
        write(state(step), tmp_path / f"{name}.ckpt")
        os.utime(tmp_path / f"{name}.ckpt", (time, time))
    weights = {name: value for name, value in state(40).items() if name != "lr_schedulers"}
    write(weights, tmp_path / "weights.ckpt")
    (tmp_path / "gone.ckpt").symlink_to("nowhere.ckpt")
    assert newest_checkpoint([tmp_path], resumable=True) == tmp_path / "a.ckpt"
    assert newest_checkpoint([tmp_path], resumable=False) == tmp_path / "weights.ckpt"
    header = read_header(tmp_path / "a.ckpt")
    assert header is not None
    assert header.step == 30
    assert newest_checkpoint([tmp_path / "none"], resumable=True) is None
