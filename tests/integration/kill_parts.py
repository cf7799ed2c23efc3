"""What a struck run does in the place of the usual: writers of checkpoints that die or are refused, a slow sampler."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import lightning as L
import torch
from torch.distributed.checkpoint import filesystem

from grpo_lightning import checkpoint_files, files, strategies
from grpo_lightning.checkpoint_files import write
from grpo_lightning.engines import TransformersEngine

SHARDS = 60
"""Tensors in the tiny model's shards: its own, and AdamW's two for each."""


class Deadly:
    """Writes checkpoints as the program does, and kills the process at one of them.

    Args:
        share: of the file's bytes, or of the first rank's shards, that are written by then; above 1 it is all but
            renamed, above 1.15 it is renamed, and the older one is still there.
        after: number of the checkpoint.
    """

    def __init__(self, share: float, *, after: int) -> None:
        self.share, self.left = share, after

    @property
    def before_the_end(self) -> bool:
        """What it writes last has not taken its place then."""
        return self.share <= 1.15

    def __call__(self, content: dict[str, Any], path: Path) -> None:
        if not self._last():
            write(content, path)
            return
        if self.share <= 1:
            buffer = io.BytesIO()
            torch.save(content, buffer)
            checkpoint_files.replacing = partial(_mortal, room=int(buffer.tell() * self.share))
        elif self.before_the_end:
            files.take_place = _die
        write(content, path)
        _die()

    def of_shards(self) -> None:
        """Have this process write its shards so, too."""
        save = strategies.FSDP2Strategy._save_shards

        def save_shards(strategy: strategies.FSDP2Strategy, checkpoint: dict[str, Any], path: Path) -> None:
            last = self._last()
            if last and self.share <= 1:
                filesystem._write_item = MortalShards(int(self.share * SHARDS))
            elif last and self.before_the_end:
                strategies.take_place = _die
            save(strategy, checkpoint, path)
            if last:
                _die()

        strategies.FSDP2Strategy._save_shards = save_shards  # type: ignore[method-assign]

    def _last(self) -> bool:
        self.left -= 1
        return self.left == 0


def _die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def _mortal(path: Path, *, room: int) -> Iterator[Any]:
    with files.replacing(path) as file:
        yield Mortal(file, room)


class Mortal:
    """A file that kills the process once it holds so many bytes."""

    def __init__(self, file: BinaryIO, room: int) -> None:
        self.file, self.room = file, room

    def write(self, data: Any) -> int:
        size = len(data)
        self.file.write(bytes(data)[: self.room])
        self.room -= size
        if self.room <= 0:
            self.file.flush()
            _die()
        return size

    def flush(self) -> None:
        self.file.flush()


class MortalShards:
    """Writes so many tensors of a shard, and kills the process half-way through the next one.

    Args:
        room: number of tensors.
    """

    def __init__(self, room: int) -> None:
        self.room, self.write = room, filesystem._write_item

    def __call__(self, transforms: Any, stream: Any, data: Any, *arguments: Any) -> Any:
        self.room -= 1
        if self.room < 0:
            stream.write(b"\0" * 64)
            stream.flush()
            _die()
        return self.write(transforms, stream, data, *arguments)


def slowly(content: dict[str, Any], path: Path) -> None:
    """Write a checkpoint that takes its time."""
    time.sleep(1)
    write(content, path)


class Refused:
    """Writes so many checkpoints; then the disk is full."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self, content: dict[str, Any], path: Path) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(content, path)


SLOW_FROM = "KILLS_SLOW_FROM"
"""Environment variable: the step from which a run waits to be struck, lest it be over before."""


class Pace(L.Callback):
    """Bounds how many rollouts go by between two strikes, however fast this process is or slow the one that strikes."""

    def on_train_batch_start(self, trainer: L.Trainer, *args: Any) -> None:
        slow = trainer.global_step >= int(os.environ.get(SLOW_FROM, sys.maxsize))
        time.sleep(0.5 if slow else 0.03)


class SlowEngine(TransformersEngine):
    """Takes its time from the third rollout on, in small pieces as a sampler's steps are."""

    calls = 0

    def generate(self, *arguments: Any, **options: Any) -> Any:
        type(self).calls += 1
        end = time.monotonic() + (600 if self.calls >= 3 else 0)
        while time.monotonic() < end:
            time.sleep(0.01)
        return super().generate(*arguments, **options)
