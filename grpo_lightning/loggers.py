"""Where figures go by default: metrics.csv, one row per optimizer step, and TensorBoard. None of it stops a run."""

from __future__ import annotations

import csv
import functools
import io
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from grpo_lightning.files import Outlived, replacing

REOPEN_SECONDS = 60.0
"""After which TensorBoard's events are tried again in a new file."""


class MetricsCSV(Logger):
    """Writes ``metrics.csv`` into the run folder, one row per optimizer step, each row at once.

    Lightning's CSVLogger deletes the file of the run that it resumes; this one goes on with it. Rows that cannot be
    written, since the disk is full, are written with the next one that can.

    Args:
        save_dir: the run folder.
    """

    def __init__(self, save_dir: str) -> None:
        super().__init__()
        self._save_dir = save_dir
        self._columns: list[str] = []
        self._last: int | None = None
        # Only these are in memory: a run of a million steps must not hold as many rows.
        self.unwritten: dict[int, dict[str, Any]] = {}
        """Rows by step that the disk has refused so far."""
        self._disk = Outlived("metrics.csv cannot be written", consequence="its rows are kept, and tried again")

    @property
    def name(self) -> str:
        return ""

    @property
    def version(self) -> str:
        return ""

    @property
    def save_dir(self) -> str:
        return self._save_dir

    @property
    def log_dir(self) -> str:
        return self._save_dir

    @property
    def path(self) -> Path:
        return Path(self._save_dir) / "metrics.csv"

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """Nothing: the resolved config is saved as config.yaml."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Add figures to the row of ``step``."""
        assert step is not None
        if self._last is None:
            self._last = max(self._read(), default=-1)
        new_columns = [name for name in metrics if name not in self._columns]
        # Appending is enough, unless an earlier row or the header has changed, or half a row was written.
        append = step > self._last and not new_columns and not self.unwritten
        self.unwritten.setdefault(step, {"step": step}).update(metrics)
        self._columns += new_columns
        self._last = max(self._last, step)
        if append and self.path.exists():
            with self._disk():
                with self.path.open("a", newline="", encoding="utf-8") as file:
                    csv.DictWriter(file, self._columns).writerow(self.unwritten[step])
                self.unwritten.clear()
        else:
            self.save()

    @rank_zero_only
    def save(self) -> None:
        """Write the rows that are not in the file yet; those that were refused are tried again."""
        if not self.unwritten:
            return
        with self._disk():
            rows = self._read()
            for number, row in self.unwritten.items():
                rows.setdefault(number, {}).update(row)
            self._rewrite(rows)
            self.unwritten.clear()

    @rank_zero_only
    def forget_after(self, step: int) -> bool:
        """Drop the rows after ``step``, where a resumed run goes on; False if there are none."""
        rows = self._read()
        kept = {number: row for number, row in rows.items() if number <= step}
        self._last = max(kept, default=-1)
        if len(kept) < len(rows):
            self._rewrite(kept)
        return len(kept) < len(rows)

    def _read(self) -> dict[int, dict[str, Any]]:
        """Rows of the file by step. Mends it if a run that was killed, or a full disk, has left half a line."""
        if not self.path.exists():
            self._columns = self._columns or ["step"]
            return {}
        with self.path.open(newline="", encoding="utf-8") as file:
            text = file.read()
        whole = text[: text.rfind("\n") + 1]
        reader = csv.DictReader(io.StringIO(whole, newline=""))
        there = list(reader.fieldnames or ["step"])
        self._columns = there + [name for name in self._columns if name not in there]
        rows = {int(row["step"]): dict(row) for row in reader}
        if len(whole) < len(text):
            self._rewrite(rows)
        return rows

    def _rewrite(self, rows: dict[int, dict[str, Any]]) -> None:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self._columns)
        writer.writeheader()
        writer.writerows(rows[step] for step in sorted(rows))
        with replacing(self.path) as file:
            file.write(text.getvalue().encode())


class StepFigures:
    """Figures of optimizer steps: metrics.csv gets each, the other loggers means over ``--trainer.log_every_n_steps``.

    A figure that came with some of the steps only (a rollout's comes with its first) is averaged over those.
    """

    LATEST = frozenset({"learning_rate", "num_tokens", "broken_steps"})
    """Figures whose last value says more than their mean."""

    def __init__(self) -> None:
        self._found: dict[str, list[float]] = {}

    def log(self, figures: dict[str, float], loggers: list[Logger], *, step: int, every: int) -> None:
        """Take the figures of optimizer step ``step``, and log what is due."""
        for logger in loggers:
            if isinstance(logger, MetricsCSV):
                logger.log_metrics(figures, step=step)
        for name, value in figures.items():
            self._found.setdefault(name, []).append(float(value))
        if step % max(every, 1) == 0:
            self.flush(loggers, step=step)

    def flush(self, loggers: list[Logger], *, step: int) -> None:
        """Log the means of what was not logged yet."""
        means = {n: values[-1] if n in self.LATEST else sum(values) / len(values) for n, values in self._found.items()}
        self._found = {}
        for logger in loggers:
            if means and not isinstance(logger, MetricsCSV):
                logger.log_metrics(means, step=step)


class TensorBoard(TensorBoardLogger):
    """Lightning's logger, opened by the first figure: a start that is refused leaves no file behind.

    Events that cannot be written, since the disk is full, are lost; a minute later a new file is tried.

    Args:
        save_dir: the run folder; the event files lie in its ``tensorboard`` folder.
    """

    def __init__(self, save_dir: str) -> None:
        super().__init__(save_dir, name="", version="tensorboard")
        self._opened = False
        # Any exception: Lightning and torch's writing thread make their own of what the disk refuses.
        self._disk = Outlived(
            "TensorBoard's events cannot be written", consequence="metrics.csv has them all", failures=Exception
        )
        self._tried = 0.0

    @property
    def experiment(self) -> Any:
        if not self._opened:
            raise AttributeError("not opened yet")  # Lightning asks by hasattr before the first check has run
        return super().experiment

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self._opened = True
        if self._disk.failing and time.monotonic() - self._tried < REOPEN_SECONDS:
            return
        with self._disk():
            self._tried = time.monotonic()
            super().log_metrics(metrics, step)
        if self._disk.failing:  # torch's writer takes nothing more
            self._experiment = None
            self._kwargs.pop("purge_step", None)  # a new file must not hide what this run has written

    def forget_after(self, step: int) -> None:
        """Hide the figures after ``step``, where a resumed run goes on in the same folder."""
        self._kwargs["purge_step"] = step + 1

    @rank_zero_only
    def save(self) -> None:
        if self._opened and not self._disk.failing:
            with self._disk():
                super().save()

    @rank_zero_only
    def finalize(self, status: str) -> None:
        if not self._disk.failing:
            with self._disk():
                super().finalize(status)


def outlived(logger: Logger) -> Logger:
    """``logger``, in place, such that once it has worked nothing that it raises ends the run.

    A logger that talks to a server may lose it for a while or for good; one that never worked is a mistake in the
    configuration.
    """
    tolerant = Outlived(
        f"{type(logger).__name__} fails", consequence="metrics.csv has every figure", failures=Exception
    )
    worked = False

    def wrapped(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*arguments: Any, **keywords: Any) -> Any:
            nonlocal worked
            if not worked:
                result = method(*arguments, **keywords)
                worked = method.__name__ == "log_metrics"
                return result
            with tolerant():
                return method(*arguments, **keywords)

        return call

    for name in ("log_metrics", "save", "after_save_checkpoint", "finalize"):
        setattr(logger, name, wrapped(getattr(logger, name)))
    return logger
