"""GRPO: policy, reference, and the paper's inner loop."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from grpo_lightning.errors import RunStopped
from grpo_lightning.functional.masking import masked_sum
from grpo_lightning.models.policy import Policy
from grpo_lightning.objectives import ClippedObjective, Objective
from grpo_lightning.policy_module import PolicyModule, frozen
from grpo_lightning.token_means import TokenMeans
from grpo_lightning.types import PromptBatch, RolloutBatch, SequenceBatch

LOGP_DIFFERENCE = "sampling/logp_difference/mean"


class GRPOModule(PolicyModule):
    """Group Relative Policy Optimization (arXiv 2402.03300, algorithm 1).

    Args:
        policy: Hugging Face id or folder of the causal language model to train.
        objective: what is minimized at each token; None is ``ClippedObjective()``: clip 0.2 / 0.28, no KL term.
        reference: id or folder of the reference policy; None is the policy's own starting point. Loaded only if the
            objective has a KL term.
        max_logp_difference: the run stops if the mean absolute difference between the sampler's and the trainer's
            log-probabilities of the same tokens exceeds this, in nats. Rounding gives 1e-6 in float32 and 0.01 to 0.05
            in bfloat16; more means that the sampler has other weights or draws from another distribution.
        kwargs: see ``PolicyModule``.
    """

    learns_from_rollouts = True

    def __init__(
        self,
        policy: str,
        *,
        objective: Objective | None = None,
        reference: str | None = None,
        max_logp_difference: float = 0.1,
        **kwargs: Any,
    ) -> None:
        super().__init__(policy, **kwargs)
        self.objective = objective or ClippedObjective()
        self.reference_path = reference or policy
        self.max_logp_difference = max_logp_difference
        self.reference: Policy | None = None

    def configure_model(self) -> None:
        super().configure_model()
        if self.reference is None and self.objective.needs_reference:
            policy = self.build_policy(self.reference_path, flag="--model.reference", trained=False)
            self.reference = frozen(policy)  # type: ignore[assignment]

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
                    token_loss = self.objective.token_loss(scores.logprobs, micro_batch)
                    loss = masked_sum(token_loss.values, micro_batch.loss_weights)
                    self.accumulate(loss, last=micro_batch is window.micro_batches[-1])
                    # Rows at weight 0 only keep this rank in step with the others.
                    counted = (micro_batch.loss_weights != 0).float()
                    difference = sampler_difference(scores.logprobs, micro_batch)
                    figures.add({"entropy": scores.entropy, LOGP_DIFFERENCE: difference, **token_loss.metrics}, counted)
                    figures.add_max("sampling/logp_difference/max", difference, counted)
                    figures.add_total("loss", loss / self.trainer.world_size)
                result = figures.result()
                self._stop_on_mismatch(result)
                result |= self.take_step(signal=bool(window.micro_batches)) | rollout_figures
                result["time/update"] = time.perf_counter() - start
                self.log_figures(result, bar=("reward", "completions/mean_length"))
                start, rollout_figures = time.perf_counter(), {}

    def score(self, batch: SequenceBatch, *, policy: Policy, temperature: float) -> Tensor:
        """Log-probabilities without gradient, by the code and in the dtype of ``training_step``, ``[B, T]``."""
        with torch.no_grad(), self.trainer.precision_plugin.forward_context():
            return policy(batch, temperature=temperature).logprobs

    def _stop_on_mismatch(self, figures: dict[str, float]) -> None:
        gap = figures.get(LOGP_DIFFERENCE, 0.0)
        if gap > self.max_logp_difference:  # NaN is not: its gradient is NaN too, and ``take_step`` skips such steps
            raise RunStopped(
                f"the sampler's log-probabilities differ from the trainer's by {gap:.3g} nats on average (bound: "
                f"--model.max_logp_difference {self.max_logp_difference}): the sampler has other weights or another "
                "distribution (top_p, top_k and min_p below 1 or above 0 change it)"
            )


def sampler_difference(logprobs: Tensor, batch: RolloutBatch) -> Tensor:
    """|log π(trainer) - log π(sampler)| at the weights the completions were sampled with, in nats, ``[B, T]``.

    Args:
        logprobs: of the current policy; those of the sampling policy are ``batch.old_logprobs`` where it has moved on.
        batch: holds the sampler's figures.
    """
    assert batch.sampling_logprobs is not None
    ours = logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs
    return (ours - batch.sampling_logprobs).abs()
