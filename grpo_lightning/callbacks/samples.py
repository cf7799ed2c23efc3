"""What the model wrote: completions with their rewards and advantages, one Parquet table per recorded rollout."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import lightning as L
import pyarrow as pa

from grpo_lightning import ranks
from grpo_lightning.callbacks import sample_table
from grpo_lightning.callbacks.progress_bar import interactive
from grpo_lightning.callbacks.rollout import RolloutCallback
from grpo_lightning.errors import UserError
from grpo_lightning.files import Outlived
from grpo_lightning.records import as_json, write_table
from grpo_lightning.rewards.marks import marked
from grpo_lightning.types import PromptBatch, Rollout

log = logging.getLogger(__name__)

COLUMNS = {
    "rollout": pa.int64(),
    "step": pa.int64(),
    "group": pa.int64(),
    "source": pa.string(),
    "row": pa.int64(),
    "prompt": pa.string(),
    "completion": pa.string(),
    "answer": pa.string(),
    "extracted": pa.string(),
    "reward": pa.float64(),
    "advantage": pa.float64(),
    "finish_reason": pa.string(),
    "prompt_tokens": pa.int64(),
    "completion_tokens": pa.int64(),
}
"""Of every table. ``step`` counts the optimizer steps taken by the rollout's end, ``group`` the prompts of the rollout.
``answer`` is the gold, ``extracted`` what the first reward with an ``answer_reader`` finds in the completion;
``finish_reason`` is "stop" or "length". Null stands for "there is none" and "does not apply"."""


class SamplesCallback(L.Callback):
    """Writes ``samples/rollout_<n>.parquet`` into the run folder: one row per completion, group by group.

    Columns: those of ``COLUMNS``, ``rewards/<name>`` for each reward function, and what reward functions gave to
    ``log_extra`` (as JSON text where it is neither number nor text). A table that cannot be written (full disk, no
    permission) is left out with a warning, and training goes on.

    Some completions of one group are shown besides: on the terminal, in TensorBoard's texts, in a table of Weights &
    Biases (``callbacks.sample_table``).

    Args:
        every_n_rollouts: how often: rollouts 1, 1 + n, 1 + 2n, ... 0 writes none.
        shown: completions that are shown each time; 0 shows none.
        console: whether the terminal shows them; null: if somebody is looking on.
    """

    def __init__(self, *, every_n_rollouts: int = 10, shown: int = 4, console: bool | None = None) -> None:
        if every_n_rollouts < 0:
            raise UserError(f"--samples.every_n_rollouts {every_n_rollouts}: must not be negative; 0 writes none")
        if shown < 0:
            raise UserError(f"--samples.shown {shown}: a number of completions; 0 shows none")
        self.shown, self.console = shown, console
        self._showing = Outlived(
            "samples cannot be shown", consequence="they are in samples/ all the same", failures=Exception
        )
        self.every_n_rollouts = every_n_rollouts
        self._writing = Outlived("the table of samples", consequence="training goes on without it", failures=Exception)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: PromptBatch, batch_idx: int
    ) -> None:
        number = trainer.fit_loop.total_batch_idx + 1
        if batch.rollout is None or not self.every_n_rollouts or (number - 1) % self.every_n_rollouts:
            return
        rewards = next((c.rewards for c in trainer.callbacks if isinstance(c, RolloutCallback)), [])
        groups = sample_rows(batch.rollout, read=answer_reader(rewards))
        groups = ranks.gather_objects(list(zip(batch.rollout.positions, groups, strict=True)))
        if ranks.rank() != 0:
            return
        groups.sort(key=lambda group: group[0])  # the same file on any number of ranks
        place = {"rollout": number, "step": trainer.global_step}
        rows = [{**row, **place, "group": g} for g, (_, group) in enumerate(groups) for row in group]
        if self.shown and rows:
            with self._showing():
                self._show(trainer, sample_table.pick(rows, most=self.shown))
        path = Path(trainer.default_root_dir) / "samples" / f"rollout_{number:06d}.parquet"
        with self._writing():
            write_table(path, rows, types=COLUMNS)

    def _show(self, trainer: L.Trainer, rows: list[dict[str, Any]]) -> None:
        looking = interactive()
        if looking if self.console is None else self.console:
            width = shutil.get_terminal_size(fallback=(120, 24)).columns
            log.info("%s", sample_table.on_console(rows, width=width, color=looking))
        sample_table.to_loggers(rows, trainer.loggers, step=trainer.global_step)


def answer_reader(rewards: Iterable[Any]) -> Callable[[str], str | None]:
    """How the first reward that looks for an answer does so (``rewards.answer_reader``); finds none without one."""
    read = next((read for reward in rewards if (read := marked(reward, "answer_reader"))), lambda _: None)

    def carefully(text: str) -> str | None:
        try:
            return read(text)
        except Exception:  # a user's function; for the table alone, no run need stop
            return None

    return carefully


def sample_rows(rollout: Rollout, *, read: Callable[[str], str | None]) -> list[list[dict[str, Any]]]:
    """This rank's completions as rows of the table, prompt by prompt; without the rollout's number, step and groups.

    Args:
        rollout: of this rank.
        read: from a completion to its final answer.
    """
    groups = []
    group_size = rollout.rewards.shape[1]
    # Plain values before ranks exchange them: a tensor's entry would bring all of the tensor along.
    columns = {name: as_json(values) for name, values in rollout.logged_columns.items()}
    for p, (prompt, group) in enumerate(zip(rollout.prompts, rollout.completions, strict=True)):
        gold, rows = as_json(prompt.columns.get("answer")), []
        for g, completion in enumerate(group):
            text = prompt.prefill + completion.text
            rows.append(
                {
                    # First what the user's functions gave: none of it can take the place of ours.
                    **{name: values[p * group_size + g] for name, values in columns.items()},
                    "source": prompt.source,
                    "row": prompt.row,
                    "prompt": prompt.text,
                    "completion": text,
                    "answer": gold if gold is None or isinstance(gold, str) else json.dumps(gold),
                    "extracted": read(text),
                    "reward": as_json(float(rollout.rewards[p, g])),
                    "advantage": as_json(float(rollout.advantages[p, g])),
                    "finish_reason": "stop" if completion.finished else "length",
                    "prompt_tokens": len(prompt.token_ids),
                    "completion_tokens": len(completion.token_ids),
                    **{f"rewards/{name}": as_json(float(term[p, g])) for name, term in rollout.reward_terms.items()},
                }
            )
        groups.append(rows)
    return groups
