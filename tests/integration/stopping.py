"""Callbacks that end a run early; tests name them by dotted path."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import lightning as L


class Stop(L.Callback):
    """Asks for the end at a step, as a time limit does after a rollout and early stopping after a validation."""

    def __init__(self, step: int, validated: bool) -> None:
        self.step, self.validated = step, validated

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        if not self.validated:
            trainer.should_stop |= trainer.global_step == self.step

    def on_validation_end(self, trainer: L.Trainer, *args: Any) -> None:
        if self.validated:
            trainer.should_stop |= trainer.global_step == self.step


class BreakOff(L.Callback):
    """Fails after a step, or while that step is validated."""

    def __init__(self, step: int, validating: bool = False) -> None:
        self.step, self.validating = step, validating

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        if trainer.global_step == self.step and not self.validating:
            raise RuntimeError("broke off")

    def on_validation_start(self, trainer: L.Trainer, *args: Any) -> None:
        if trainer.global_step == self.step:
            raise RuntimeError("broke off")


class Announce(L.Callback):
    """Sends this process the scheduler's signal while a rollout is trained on, or before that step is validated."""

    def __init__(self, step: int, validating: bool = False) -> None:
        self.step, self.validating = step, validating

    def on_before_optimizer_step(self, trainer: L.Trainer, *args: Any) -> None:
        if trainer.global_step + 1 == self.step and not self.validating:
            signal.raise_signal(signal.SIGUSR1)

    def on_validation_start(self, trainer: L.Trainer, *args: Any) -> None:
        if trainer.global_step == self.step and self.validating:
            signal.raise_signal(signal.SIGUSR1)


class Terminate(L.Callback):
    """Sends the first rank SIGTERM after a step, before the next rollout, or in the rollout that takes that step."""

    def __init__(self, step: int, stepping: bool = False) -> None:
        self.step, self.stepping = step, stepping

    def on_train_batch_start(self, trainer: L.Trainer, *args: Any) -> None:
        if trainer.global_step == self.step and not self.stepping:
            self._send(trainer)

    def on_before_optimizer_step(self, trainer: L.Trainer, *args: Any) -> None:
        if trainer.global_step + 1 == self.step and self.stepping:
            self._send(trainer)

    def _send(self, trainer: L.Trainer) -> None:
        if trainer.is_global_zero:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.1)  # until it is known


class LoseWandb(L.Callback):
    """Ends wandb's own process, through which all goes to its server, after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        if trainer.global_step != self.step:
            return
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[1]
                if int(parent) == os.getpid() and b"wandb-core" in (entry / "cmdline").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)
