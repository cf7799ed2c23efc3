"""GRPO: the paper's inner loop."""

from __future__ import annotations

import time

from grpo_lightning.advantages import AdvantageEstimator, group_normalized
from grpo_lightning.rollout_module import RolloutModule
from grpo_lightning.token_means import TokenMeans
from grpo_lightning.types import PromptBatch


class GRPOModule(RolloutModule):
    """Group Relative Policy Optimization (arXiv 2402.03300, algorithm 1).

    Policy and reference with the GRPO loss; every argument is described in ``RolloutModule`` and ``PolicyModule``.
    """

    @property
    def estimator(self) -> AdvantageEstimator:
        return group_normalized

    def training_step(self, batch: PromptBatch, batch_idx: int) -> None:
        """Learn from one rollout: passes (mu) x windows (one optimizer step each) x micro-batches."""
        rollout = batch.rollout
        assert rollout is not None and self.policy is not None, "no rollout was attached to this batch"
        start, rollout_figures = time.perf_counter(), rollout.metrics
        for _ in range(rollout.passes):
            for window in rollout.windows:
                figures = TokenMeans()
                for micro_batch in window.micro_batches:
                    scores = self.policy(micro_batch, temperature=rollout.temperature)
                    loss = self.policy_loss(scores, micro_batch, window=window, figures=figures)
                    self.accumulate(loss, last=micro_batch is window.micro_batches[-1])
                result = figures.result(all_tokens=window.tokens) | rollout_figures
                self.stop_on_mismatch(result, truncated=rollout.truncated)
                result |= self.take_step(signal=bool(window.micro_batches))
                result["time/update"] = time.perf_counter() - start
                self.log_step(result, bar=("reward", "completions/mean_length"))
                start, rollout_figures = time.perf_counter(), {}
