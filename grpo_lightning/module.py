"""GRPO: policy, reference, and the paper's inner loop."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from grpo_lightning.errors import RunStopped, UserError
from grpo_lightning.functional.masking import masked_sum
from grpo_lightning.models.adapters import reference_adapter
from grpo_lightning.models.loading import load_config
from grpo_lightning.models.sharding import reshard
from grpo_lightning.objectives import ClippedObjective, Objective
from grpo_lightning.policy_module import PolicyModule, frozen
from grpo_lightning.rollout import sampler_gap
from grpo_lightning.rollout.sampler_gap import sampler_difference
from grpo_lightning.strategies import distributed
from grpo_lightning.token_means import TokenMeans
from grpo_lightning.types import PromptBatch, SequenceBatch


class GRPOModule(PolicyModule):
    """Group Relative Policy Optimization (arXiv 2402.03300, algorithm 1).

    Args:
        policy: Hugging Face id or folder of the causal language model to train.
        objective: what is minimized at each token; None is ``ClippedObjective()``: clip 0.2 / 0.28, no KL term.
        reference: id or folder of the reference policy; None is the policy's own starting point. Loaded only if the
            objective has a KL term.
        max_logp_difference: the run stops if the mean absolute difference between the sampler's and the trainer's
            log-probabilities of the same tokens exceeds this, in nats. Rounding gives up to 1e-4 in float32 and 0.01 to
            0.05 in bfloat16; more means that the sampler has other weights. Not applied where top_p, top_k or min_p cut
            the sampled distribution, which makes the two differ by design.
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
        self._reference_given = reference is not None
        if reference is not None and self.objective.needs_reference:
            self._check_vocabulary(reference)
        if max_logp_difference <= 0:
            raise UserError(f"--model.max_logp_difference {max_logp_difference}: a bound in nats must be positive")
        self.max_logp_difference = max_logp_difference
        self.reference: nn.Module | None = None
        """Frozen; None without a KL term, and where it is the policy itself without its adapter."""

    @property
    def needs_reference(self) -> bool:  # type: ignore[override]
        return self.objective.needs_reference

    def _check_vocabulary(self, reference: str) -> None:
        config = load_config(reference, flag="--model.reference", trust_remote_code=self.trust_remote_code)
        theirs, ours = config.get_text_config().vocab_size, self.model_config.get_text_config().vocab_size
        if theirs != ours:
            raise UserError(
                f"--model.reference {reference} has {theirs} tokens and --model.policy {self.policy_path} has {ours}: "
                "the reference must read the policy's own token ids"
            )

    def configure_model(self) -> None:
        super().configure_model()
        # An adapter that goes on from a trained one began there, which is not --model.policy.
        began_elsewhere = self.adapter is not None and self.adapter.path is not None and self._reference_given
        is_start = self.adapter is not None and self.reference_path == self.policy_path and not began_elsewhere
        if self.needs_reference and self.reference is None and not is_start:
            policy = self.build_policy(self.reference_path, flag="--model.reference", trained=False)
            self.origin["reference"] = policy.fingerprint()
            self.reference = distributed(frozen(policy), self.trainer.strategy)

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
                    difference = sampler_difference(scores.logprobs, micro_batch)
                    means = {"entropy": scores.entropy, sampler_gap.MEAN: difference, **token_loss.metrics}
                    figures.add(means, micro_batch.counted, shares=token_loss.shares)
                    figures.add_max(sampler_gap.MAX, difference, micro_batch.counted)
                    figures.add_total("loss", loss / self.trainer.world_size)
                result = figures.result(all_tokens=window.tokens) | rollout_figures
                self._stop_on_mismatch(result, truncated=rollout.truncated)
                result |= self.take_step(signal=bool(window.micro_batches))
                result["time/update"] = time.perf_counter() - start
                self.log_step(result, bar=("reward", "completions/mean_length"))
                start, rollout_figures = time.perf_counter(), {}

    def score(self, batch: SequenceBatch, *, temperature: float, reference: bool = False) -> Tensor:
        """Log-probabilities without gradient, by the code and in the dtype of ``training_step``, ``[B, T]``.

        Args:
            batch: of completions.
            temperature: the one they were sampled at.
            reference: of the reference policy instead of the current one.
        """
        assert self.policy is not None
        scored = self.reference if reference and self.reference is not None else self.policy
        switched = reference and self.reference is None
        with (
            torch.no_grad(),
            self.trainer.precision_plugin.forward_context(),
            reference_adapter(self.policy.model) if switched else nullcontext(),
        ):
            logprobs = scored(batch, temperature=temperature).logprobs
        reshard(scored)
        return logprobs

    def _stop_on_mismatch(self, figures: dict[str, float], *, truncated: bool) -> None:
        gap = figures.get(sampler_gap.MEAN, 0.0)
        # A NaN of the trainer's passes here, and ``take_step`` skips the step; the collector stops at the sampler's.
        if gap > self.max_logp_difference and not truncated:
            raise RunStopped(
                f"the sampler's log-probabilities differ from the trainer's by {gap:.3g} nats on average (bound: "
                f"--model.max_logp_difference {self.max_logp_difference}): it has other weights than the policy"
            )
