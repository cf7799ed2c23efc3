"""What the model wrote: completions with their rewards and advantages, one JSONL file per recorded rollout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L

from grpo_lightning import ranks
from grpo_lightning.errors import UserError
from grpo_lightning.records import as_json, completion_record, write_records
from grpo_lightning.types import PromptBatch, Rollout


class SamplesCallback(L.Callback):
    """Writes ``samples/rollout_<n>.jsonl`` into the run folder.

    Args:
        every_n_rollouts: how often: rollouts 1, 1 + n, 1 + 2n, ... 0 writes none.
    """

    def __init__(self, *, every_n_rollouts: int = 10) -> None:
        if every_n_rollouts < 0:
            raise UserError(f"--samples.every_n_rollouts {every_n_rollouts}: must not be negative; 0 writes none")
        self.every_n_rollouts = every_n_rollouts

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: PromptBatch, batch_idx: int
    ) -> None:
        number = trainer.fit_loop.total_batch_idx + 1
        if batch.rollout is None or not self.every_n_rollouts or (number - 1) % self.every_n_rollouts:
            return
        groups = ranks.gather_objects(list(zip(batch.rollout.positions, _lines(batch.rollout), strict=True)))
        if ranks.rank() == 0:
            groups.sort(key=lambda group: group[0])  # the same file on any number of ranks
            lines = [line for _, group in groups for line in group]
            write_records(Path(trainer.default_root_dir) / "samples" / f"rollout_{number:06d}.jsonl", lines)


def _lines(rollout: Rollout) -> list[list[dict[str, Any]]]:
    """This rank's records, prompt by prompt."""
    groups = []
    group_size = rollout.rewards.shape[1]
    # Plain values before ranks exchange them: a tensor's entry would bring all of the tensor along.
    columns = {name: as_json(values) for name, values in rollout.logged_columns.items()}
    for p, (prompt, group) in enumerate(zip(rollout.prompts, rollout.completions, strict=True)):
        groups.append(
            [
                {
                    # First what the user's functions gave: none of it can take the place of ours.
                    **{name: values[p * group_size + g] for name, values in columns.items()},
                    **completion_record(prompt, completion),
                    "reward": float(rollout.rewards[p, g]),
                    "rewards": {name: float(term[p, g]) for name, term in rollout.reward_terms.items()},
                    "advantage": float(rollout.advantages[p, g]),
                }
                for g, completion in enumerate(group)
            ]
        )
    return groups
