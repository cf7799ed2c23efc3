"""Optimizer steps whose loss or gradient was NaN or infinite: counted, kept for study; many in a row end the run."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import lightning as L
from torch import Tensor

from grpo_lightning import ranks
from grpo_lightning.checkpoint_files import write
from grpo_lightning.errors import RunStopped
from grpo_lightning.files import Outlived
from grpo_lightning.types import Window

log = logging.getLogger(__name__)
IN_A_ROW = 20
"""Broken steps after which the run stops."""
KEPT = 5
"""Most steps whose batches are kept: a run that breaks thousands of times must not fill the disk."""
FOLDER = "broken"


class BrokenSteps:
    """What was skipped, and ``broken/step<n>.pt`` in the run folder to find out why.

    A file holds a dict: ``step``, ``rank``, ``loss`` of the step over all ranks, ``figures`` such as gradient norms,
    and ``micro_batches``, one dict of tensors each, with the fields of ``types.RolloutBatch``. Each rank writes what it
    trained on, other ranks than the first to ``step<n>-rank<r>.pt``. ``torch.load(..., weights_only=True)`` reads it.
    """

    def __init__(self) -> None:
        self.count = 0
        """Of the whole run, earlier parts of it included."""
        self._in_a_row = 0
        self._disk = Outlived(FOLDER, consequence="the batch of a broken step is not kept")

    def over(self) -> None:
        """A step has moved the weights."""
        self._in_a_row = 0

    def add(
        self, window: Window[Any], *, step: int, loss: float, figures: dict[str, float], trainer: L.Trainer
    ) -> None:
        """Take note of a broken step, on all ranks alike.

        Args:
            window: what this rank trained on.
            step: its number.
            loss: over all ranks.
            figures: of the step, to be kept with its batch.
            trainer: whose run folder gets the batch.

        Raises:
            RunStopped: after so many in a row.
        """
        folder = Path(trainer.default_root_dir)
        self.count += 1
        self._in_a_row += 1
        log.warning("step %d skipped: NaN or inf in loss or gradient", step)
        if self.count <= KEPT:
            with self._disk():
                self._keep(folder / FOLDER, step=step, loss=loss, figures=figures, window=window)
        if self._in_a_row >= IN_A_ROW:
            raise RunStopped(
                f"NaN or inf in loss or gradient for {IN_A_ROW} optimizer steps in a row: lower --model.lr or "
                f"--model.max_grad_norm, or go back to an earlier checkpoint; batches to study: {folder / FOLDER}"
            )

    def _keep(self, folder: Path, *, step: int, loss: float, figures: dict[str, float], window: Window[Any]) -> None:
        rank = ranks.rank()
        content = {
            "step": step,
            "rank": rank,
            "loss": loss,
            "figures": figures,
            "micro_batches": [_tensors(micro_batch) for micro_batch in window.micro_batches],
        }
        write(content, folder / (f"step{step}-rank{rank}.pt" if rank else f"step{step}.pt"))


def _tensors(batch: Any) -> dict[str, Tensor]:
    values = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    return {name: value.detach().cpu() for name, value in values.items() if isinstance(value, Tensor)}
