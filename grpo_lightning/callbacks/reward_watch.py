"""Says so when rewards teach nothing for a long time."""

from __future__ import annotations

import logging
from collections import defaultdict
from pathlib import Path
from typing import Any

import lightning as L

from grpo_lightning import ranks
from grpo_lightning.errors import UserError
from grpo_lightning.types import PromptBatch

log = logging.getLogger(__name__)

TERM = "rewards/{}/mean"


class RewardWatch(L.Callback):
    """Warns, once in a run, after so many rollouts in a row in which every advantage is 0.

    An advantage compares a completion with the others of its group: where all of them earn the same, in every group,
    there is nothing to learn. One such rollout is nothing special; fifty are a reward that never pays or always does.
    Advantages are looked at, not total rewards, which may be equal where the rewards are normalized one by one.

    Args:
        rollouts: in a row, over all ranks.
    """

    def __init__(self, *, rollouts: int = 50) -> None:
        if rollouts < 1:
            raise UserError(f"RewardWatch(rollouts={rollouts}): a number of rollouts in a row, at least 1")
        self.rollouts = rollouts
        self._flat = 0
        self._terms: dict[str, float] = defaultdict(float)
        """Sum of each term's means over the flat rollouts."""
        self._warned = False

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: PromptBatch, batch_idx: int
    ) -> None:
        if batch.rollout is None or self._warned:
            return
        metrics = batch.rollout.metrics
        masked = [float(window.tokens == 0) for window in batch.rollout.windows]
        if ranks.all_max(batch.rollout.advantages.abs().max()).item() != 0 and not all(masked):
            self._flat = 0
            self._terms.clear()
            return
        self._flat += 1
        for name in batch.rollout.reward_terms:
            self._terms[name] += metrics[TERM.format(name)]
        if self._flat == self.rollouts:
            self._warned = True
            means = ", ".join(f"{name} {total / self._flat:.4g}" for name, total in self._terms.items())
            samples = Path(trainer.default_root_dir) / "samples"
            log.warning(
                "WARNING: nothing to learn for %d rollouts in a row: all completions of a prompt earned the same, for "
                "every prompt, or --rollout.mask_truncated left all of them out. Mean of each reward: %s; share of "
                "completions cut at the length limit: %.0f%%. Read some in %s: do they keep the layout that the "
                "rewards look for (--data.template.answer_format), are they cut before their answer "
                "(--rollout.max_completion_length), are the questions far too hard or too easy, are all sums at a "
                "bound of --rollout.reward_clip?",
                self._flat, means, 100 * metrics["completions/clipped_ratio"], samples,
            )  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        return {"flat": self._flat, "terms": dict(self._terms), "warned": self._warned}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._flat, self._warned = state_dict["flat"], state_dict["warned"]
        self._terms = defaultdict(float, state_dict["terms"])
