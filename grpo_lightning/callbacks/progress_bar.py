"""The progress of a run, in batches of the loader: one rollout each."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections import deque
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import TQDMProgressBar
from lightning.pytorch.callbacks.progress.tqdm_progress import Tqdm, convert_inf

log = logging.getLogger(__name__)

PHASES = {
    "sync": "rollout",
    "generate": "rollout",
    "reward_wait": "reward",
    "score": "log-probs",
    "forward_backward": "update",
    "optimizer": "update",
}
"""What the bar calls the phases of ``ThroughputCallback``; any other has its own name."""
SHORT = {"completions/mean_length": "length", "tokens_per_second": "tokens/s"}
"""Names of figures in the bar."""
TEXTS = {
    "reward": "reward {:.3f}",
    "completions/mean_length": "length {:.1f}",
    "loss": "loss {:.3g}",
    "tokens_per_second": "{:,.0f} tokens/s",
    "step_time": "{:.3g} s",
}
"""Figures in a line."""
RECENT = 100
"""Rollouts whose mean time the time left is reckoned by: completions may become longer."""


class ProgressBar(TQDMProgressBar):
    """Lightning's bar over the whole run, with the phase at hand and the time left; no terminal gets a line at times.

    The bar counts what a resumed run has behind it. The time left includes evaluations and checkpoints as they have
    come so far, and knows nothing of early stopping.

    Args:
        line_seconds: least time from line to line where the output goes to a file or a pipe.
        kwargs: see Lightning's.
    """

    def __init__(self, *, line_seconds: float = 30.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.line_seconds = line_seconds
        self._figures: dict[str, float] = {}
        self._total: float = math.inf
        self._ends: deque[float] = deque(maxlen=RECENT)
        """When this process began to train, or ended each of the latest rollouts."""
        self._start, self._last_line = 0.0, -math.inf
        self._phase = ""

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if not interactive():
            self.disable()

    @property
    def sanity_check_description(self) -> str:
        return "Evaluation before training"

    @property
    def total_train_batches(self) -> float:
        """Of the whole run; Lightning takes optimizer steps for batches."""
        trainer = self.trainer
        every = math.inf if trainer.max_epochs in (None, -1) else trainer.max_epochs * trainer.num_training_batches
        if trainer.max_steps < 0:
            return every
        left = math.ceil((trainer.max_steps - trainer.global_step) / trainer.lightning_module.steps_per_batch)
        return min(every, self._done + max(left, 0))

    @property
    def _done(self) -> int:
        """Batches of the whole run that have begun."""
        return self.trainer.fit_loop.total_batch_idx + 1

    def init_train_tqdm(self) -> Tqdm:
        """Without tqdm's own time left, which is by the mean over everything."""
        bar = super().init_train_tqdm()
        bar.bar_format = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]"
        return bar

    # --- what is shown ---------------------------------------------------------------------------------------------

    def on_train_start(self, trainer: L.Trainer, *args: Any) -> None:
        super().on_train_start(trainer, *args)
        self._start, self._total = time.monotonic(), self.total_train_batches
        self._ends, self._last_line, self._figures = deque([self._start], maxlen=RECENT), -math.inf, {}
        bar = self.train_progress_bar
        bar.total, bar.initial, bar.n = convert_inf(self._total), self._done, self._done
        self._describe("")

    def on_train_epoch_start(self, trainer: L.Trainer, *args: Any) -> None:
        """One bar for all epochs."""
        self._describe("")

    def on_phase(self, phase: str) -> None:
        """The run begins with ``phase``."""
        name = PHASES.get(phase, phase)
        if self.is_enabled and name != self._phase:
            self._describe(name)

    def _describe(self, phase: str) -> None:
        self._phase = phase
        if self.is_enabled:
            self.train_progress_bar.set_description(f"Epoch {self.trainer.current_epoch} {phase}".rstrip())

    def on_step_figures(self, trainer: L.Trainer, pl_module: Any, figures: dict[str, float]) -> None:
        """Keep what the bar and the lines show."""
        self._figures |= {name: figures[name] for name in TEXTS if name in figures}

    def get_metrics(self, trainer: L.Trainer, pl_module: L.LightningModule) -> dict[str, Any]:
        found = super().get_metrics(trainer, pl_module)
        shown = {SHORT.get(name, name): value for name, value in found.items() if name != "v_num"}
        if "tokens_per_second" in self._figures:
            shown[SHORT["tokens_per_second"]] = f"{self._figures['tokens_per_second']:,.0f}"
        left = self.seconds_left()
        return shown if left is None else shown | {"left": duration(left)}

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *args: Any) -> None:
        self._ends.append(time.monotonic())
        done = self._done
        if self._should_update(done, convert_inf(self._total) or 0):
            self.train_progress_bar.n = done
            self.train_progress_bar.set_postfix(self.get_metrics(trainer, pl_module))
        elif self.is_disabled and trainer.is_global_zero:
            self._say(done, "rollout" if pl_module.learns_from_rollouts else "step")

    def seconds_left(self) -> float | None:
        """Of the whole run, by the mean time of the latest rollouts; None if there is no telling."""
        ends = list(self._ends)
        ends = ends[1:] if len(ends) > 2 else ends  # without the first rollout, in which the sampler starts
        if len(ends) < 2 or math.isinf(self._total):
            return None
        return (self._total - self._done) * (ends[-1] - ends[0]) / (len(ends) - 1)

    def _say(self, done: int, unit: str) -> None:
        now, seen, left = self._ends[-1], self._figures, self.seconds_left()
        if done < self._total and now - self._last_line < self.line_seconds:
            return
        self._last_line = now
        parts = [TEXTS[name].format(seen[name]) for name in TEXTS if name in seen]
        if left is not None:
            parts.append(f"{duration(left)} left" if done < self._total else f"done in {duration(now - self._start)}")
        total = "" if math.isinf(self._total) else f"/{self._total:.0f}"
        log.info("%s %d%s: %s", unit, done, total, ", ".join(parts))


def interactive() -> bool:
    """True if somebody is looking on: the output goes to a terminal or a notebook."""
    return sys.stdout.isatty() or "ipykernel" in sys.modules


def duration(seconds: float) -> str:
    """``"42s"``, ``"3m 05s"``, ``"2h 07m"``, ``"4d 06h"``."""
    seconds = round(seconds)
    for size, name, small, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if seconds >= size:
            return f"{seconds // size}{name} {seconds % size // small:02d}{smaller}"
    return f"{seconds}s"
