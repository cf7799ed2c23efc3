"""A long run that is watched: memory, open files, processes and the processor's time of each rollout."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import lightning as L

from tests.integration.command_line import REWARDS, grpo, totals

Pulse = dict[str, float]
"""After one rollout: ``memory`` (resident, MiB), ``files`` and ``processes`` (open and alive), ``seconds`` (of the
processor, this process's threads, since the rollout before)."""


class Monitor(L.Callback):
    """Takes a pulse after every rollout; last of all callbacks but the checkpoints.

    Args:
        path: JSON file of the pulses, written at the end.
    """

    def __init__(self, *, path: str) -> None:
        self.path, self.pulses = Path(path), []
        self._before = time.process_time()

    def on_train_batch_end(self, *args: Any) -> None:
        now = time.process_time()
        self.pulses.append(
            {
                "memory": resident(),
                "files": len(os.listdir("/proc/self/fd")),
                "processes": len(descendants()),
                "seconds": now - self._before,
            }
        )
        self._before = time.process_time()

    def on_train_end(self, *args: Any) -> None:
        self.path.write_text(json.dumps(self.pulses), "utf-8")


def resident() -> float:
    """Memory of this process, MiB."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def descendants() -> set[int]:
    """Processes that this one, or one of them, has started and that are not reaped yet."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            parents[int(status.parent.name)] = int(
                status.read_text("utf-8", errors="replace").rpartition(")")[2].split()[1]
            )
    found, newest = set(), {os.getpid()}
    while newest:
        newest = {process for process, parent in parents.items() if parent in newest}
        found |= newest
    return found


def longer_is_better(completions: list[str], **_: Any) -> list[float]:
    """A reward that is computed in a process of its own."""
    return [float(len(completion)) for completion in completions]


def watched(policy: Path, folder: Path, *, rollouts: int) -> dict[str, Any]:
    """A run of so many rollouts in two epochs, with evaluations, checkpoints, samples and two loggers.

    The policy does not move, so that the last rollout has as much to do as the first; optimizer steps are taken all the
    same.
    """
    monitor = {"class_path": "tests.integration.soak.Monitor", "init_args": {"path": str(folder / "pulses.json")}}
    return grpo(
        policy,
        folder,
        model__init_args__lr=0.0,
        rollout__rewards=[f"{REWARDS}.share_of_digits", "tests.integration.soak.longer_is_better"],
        data__source=totals("train", 2 * rollouts),
        trainer__max_steps=rollouts,
        trainer__limit_val_batches=1,
        trainer__val_check_interval=rollouts // 10,
        trainer__callbacks=[monitor],
    )


def pulses(folder: Path) -> list[Pulse]:
    """Of a run with ``watched``'s configuration."""
    return json.loads((folder / "pulses.json").read_text("utf-8"))


def faults(pulses: Sequence[Pulse], *, warm_up: int, memory: float, drift: float) -> list[str]:
    """What grew between the rollouts right after the warm-up and the last ones; empty if nothing did.

    Args:
        pulses: of all rollouts.
        warm_up: rollouts that fill caches and start workers.
        memory: share by which the resident memory may grow.
        drift: share by which a rollout's processor time may.
    """
    rest = pulses[warm_up:]
    part = max(len(rest) // 5, 1)
    begin, end = ({name: [pulse[name] for pulse in of] for name in pulses[0]} for of in (rest[:part], rest[-part:]))
    found = []
    for name, share in (("memory", memory), ("seconds", drift)):
        growth = statistics.median(end[name]) / statistics.median(begin[name]) - 1
        if growth > share:
            found.append(f"{name} grew by {growth:.1%} (bound {share:.0%})")
    for name in ("files", "processes"):
        if max(end[name]) > max(begin[name]):
            found.append(f"{name}: {max(begin[name]):.0f} before, {max(end[name]):.0f} in the end")
    return found
