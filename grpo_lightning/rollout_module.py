"""A policy that learns from rollouts: the paper's inner loop, which GRPO and PPO share."""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn

from grpo_lightning.advantages import AdvantageEstimator, TokenEstimator
from grpo_lightning.errors import RunStopped, UserError
from grpo_lightning.functional.logprobs import TokenScores
from grpo_lightning.functional.masking import masked_sum
from grpo_lightning.models.adapters import reference_adapter
from grpo_lightning.models.loading import load_config
from grpo_lightning.models.sharding import reshard
from grpo_lightning.objectives import ClippedObjective, Objective, TokenLoss
from grpo_lightning.policy_module import PolicyModule
from grpo_lightning.rollout import sampler_gap
from grpo_lightning.rollout.figures import Clock
from grpo_lightning.rollout.passes import Learner
from grpo_lightning.rollout.sampler_correction import OffPolicyMask, SamplerCorrection
from grpo_lightning.strategies import distributed
from grpo_lightning.token_means import TokenMeans, quotient
from grpo_lightning.types import PromptBatch, Rollout, RolloutBatch, SequenceBatch, Window

log = logging.getLogger(__name__)


class RolloutModule(PolicyModule):
    """The reference, the passes before a rollout's first step, and the loss of one micro-batch.

    Args:
        policy: Hugging Face id or folder of the causal language model to train.
        objective: what is minimized at each token; None is ``ClippedObjective()``: clip 0.2 / 0.28, no KL term.
        reference: id or folder of the reference policy; None is the policy's own starting point. Loaded only to
            train with a KL term.
        correction: importance weights for what the sampler's arithmetic makes of the policy; true is
            ``SamplerCorrection()``, truncated at 2, a token's or what the objective's ``level`` is; false is none.
        off_policy_threshold: leave out sequences with a negative advantage whose mean log-ratio of sampler to policy
            exceeds this, in nats (``OffPolicyMask``); null leaves out none.
        entropy_coef: weight of an entropy bonus, the mean over the trained tokens of the optimizer step whatever the
            reduction; 0 is none.
        top_entropy_quantile: share of an optimizer step's tokens, those of the highest entropy, that the policy term
            is confined to (arXiv 2506.01939; 0.2 there); 1 is all. KL term and entropy bonus act on every token.
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
        correction: SamplerCorrection | bool = True,
        off_policy_threshold: float | None = None,
        entropy_coef: float = 0.0,
        top_entropy_quantile: float = 1.0,
        max_logp_difference: float = 0.1,
        **kwargs: Any,
    ) -> None:
        super().__init__(policy, **kwargs)
        self.objective = objective or ClippedObjective()
        self.reference_path = reference or policy
        self._reference_given = reference is not None
        if reference is not None and self.objective.needs_reference:
            self.check_vocabulary(reference, flag="--model.reference")
        if not max_logp_difference > 0:
            raise UserError(f"--model.max_logp_difference {max_logp_difference}: a bound in nats must be positive")
        if not 0 < top_entropy_quantile <= 1:
            raise UserError(f"--model.top_entropy_quantile {top_entropy_quantile}: a share above 0 and at most 1")
        if not math.isfinite(entropy_coef):
            raise UserError(f"--model.entropy_coef {entropy_coef}: a finite weight; 0 is no bonus")
        chosen = SamplerCorrection() if correction is True else correction or None
        self.correction = None if chosen is None else chosen.of_level(self.objective.level)
        self.off_policy_mask = None if off_policy_threshold is None else OffPolicyMask(off_policy_threshold)
        self.entropy_coef, self.entropy_steered = entropy_coef, False  # see ``callbacks.AdaptiveEntropy``
        self.top_entropy_quantile = top_entropy_quantile
        self.max_logp_difference = max_logp_difference
        self.reference: nn.Module | None = None
        """Frozen; None without a KL term, outside ``fit``, and where it is the policy itself without its adapter."""
        self._warned_of_steps = False

    @property
    @abstractmethod
    def estimator(self) -> AdvantageEstimator | TokenEstimator:
        """Makes the advantages where ``--rollout.advantages`` names nothing else."""

    # --- reference -----------------------------------------------------------------------------------------------

    @property
    def needs_reference(self) -> bool:  # type: ignore[override]
        return self.objective.needs_reference

    def check_vocabulary(self, path: str, *, flag: str) -> None:
        """Refuse another model, named by ``flag``, that reads other token ids than the policy."""
        config = load_config(path, flag=flag, trust_remote_code=self.trust_remote_code)
        theirs, ours = config.get_text_config().vocab_size, self.model_config.get_text_config().vocab_size
        if theirs != ours:
            raise UserError(
                f"{flag} {path} has {theirs} tokens and --model.policy {self.policy_path} has {ours}: it must read the "
                "policy's own token ids"
            )

    def configure_model(self) -> None:
        super().configure_model()
        # An adapter that goes on from a trained one began there, which is not --model.policy.
        began_elsewhere = self.adapter is not None and self.adapter.path is not None and self._reference_given
        is_start = self.adapter is not None and self.reference_path == self.policy_path and not began_elsewhere
        fits = self.needs_reference and self.trainer.state.fn == TrainerFn.FITTING  # nothing else asks for it
        if fits and self.reference is None and not is_start:
            policy = self.build_policy(self.reference_path, flag="--model.reference", trained=False)
            self.origin["reference"] = policy.fingerprint()
            self.reference = distributed(policy.eval().requires_grad_(False), self.trainer.strategy)

    # --- before the first step -----------------------------------------------------------------------------------

    def learner(self, *, temperature: float) -> Learner:
        """What a rollout asks of this module.

        Args:
            temperature: the one the completions are sampled at.
        """
        score = partial(self.score, temperature=temperature)
        return Learner(
            score_old=score,
            score_reference=(lambda batch: score(batch, reference=True).logprobs) if self.needs_reference else None,
            reward_penalty=self.objective.reward_penalty if self.objective.penalizes_reward else None,
            top_entropy_quantile=self.top_entropy_quantile,
            drops_zero_advantage=self.drops_zero_advantage,
            layout=self.layout,
        )

    @property
    def drops_zero_advantage(self) -> bool:
        """True if sequences with advantage 0 may be left out of the backward without changing the gradient."""
        only_policy_term = self.entropy_coef == 0 and not self.entropy_steered and self.top_entropy_quantile == 1
        return only_policy_term and self.objective.zero_advantage_means_zero_gradient

    def score(self, batch: SequenceBatch, *, temperature: float, reference: bool = False) -> TokenScores:
        """Log-probabilities and entropies without gradient, by the code and in the dtype of ``training_step``.

        Args:
            batch: of completions.
            temperature: the one they were sampled at.
            reference: of the reference policy instead of the current one.
        """
        assert self.policy is not None
        if reference and self.reference is None and self.adapter is None:
            raise RunStopped(
                "the objective has a KL term by now, but no reference was loaded: begin with --model.objective.beta "
                "above 0, however small"
            )
        scored = self.reference if reference and self.reference is not None else self.policy
        switched = reference and self.reference is None
        with (
            torch.no_grad(),
            self.trainer.precision_plugin.forward_context(),
            reference_adapter(self.policy.model) if switched else nullcontext(),
        ):
            scores = scored(batch, temperature=temperature)
        reshard(scored)
        return scores

    # --- learning ------------------------------------------------------------------------------------------------

    def training_step(self, batch: PromptBatch, batch_idx: int) -> None:
        """Learn from one rollout: passes (mu) x windows (one optimizer step each) x micro-batches."""
        rollout = batch.rollout
        assert rollout is not None, "no rollout was attached to this batch"
        rollout_figures = rollout.metrics
        self._warn_of_steps(rollout)
        for _ in range(rollout.passes):
            for window in rollout.windows:
                clock, figures = self.clock(), TokenMeans()
                with clock("forward_backward"):
                    for micro_batch in window.micro_batches:
                        loss = self.loss(micro_batch, window=window, temperature=rollout.temperature, figures=figures)
                        self.accumulate(loss, last=micro_batch is window.micro_batches[-1])
                    # The step's own figures last: no reward function's figure can take the place of one of them.
                    result = rollout_figures | figures.result(all_tokens=window.tokens)
                self.stop_on_mismatch(result, truncated=rollout.truncated)
                with clock("optimizer"):
                    result |= self.take_step(window, loss=result.get("loss", 0.0))
                result |= clock.metrics()
                result["time/update"] = result["time/forward_backward"] + result["time/optimizer"]
                self.log_step(result, bar=("reward", "completions/mean_length"))
                rollout_figures = {}

    def _warn_of_steps(self, rollout: Rollout) -> None:
        """Say once that rewards per step do not reach their steps; that a reward has steps shows only now."""
        advantages = [rows.advantages for window in rollout.windows for rows in window.micro_batches]
        if self._warned_of_steps or self.objective.level == "token" or all(a.shape[1] == 1 for a in advantages):
            return
        self._warned_of_steps = True
        log.warning(
            "--model.objective %s has one gradient for a whole sequence: rewards per step act on it by their mean over "
            "the tokens, and credit no step; use an objective of tokens (GSPO: token_gradient true)",
            type(self.objective).__name__,
        )

    def clock(self) -> Clock:
        """For the phases of a rollout; callbacks that have ``on_phase(phase)`` are told as each begins."""
        listeners = [callback.on_phase for callback in self.trainer.callbacks if hasattr(callback, "on_phase")]

        def began(phase: str) -> None:
            for tell in listeners:
                tell(phase)

        return Clock(began=began)

    def loss(
        self, batch: RolloutBatch, *, window: Window[RolloutBatch], temperature: float, figures: TokenMeans
    ) -> Tensor:
        """A micro-batch's part of the loss of its optimizer step, with gradient.

        Args:
            batch: the micro-batch.
            window: the optimizer step that it belongs to.
            temperature: the one the completions were sampled at.
            figures: gets what is logged.

        Returns:
            Scalar; times the number of ranks, over which DDP and FSDP average.
        """
        assert self.policy is not None
        scores = self.policy(batch, temperature=temperature)
        return self.policy_loss(scores, batch, window=window, figures=figures)

    def policy_loss(
        self, scores: TokenScores, batch: RolloutBatch, *, window: Window[RolloutBatch], figures: TokenMeans
    ) -> Tensor:
        """Σ loss_weights · (factors · objective + penalty) - entropy_coef · mean entropy.

        What is left out or weighed where (all of it 1 by default, or where it does nothing):

        - ``completion_mask``: everywhere, as ``loss_weights``, and as ``counted`` in the bonus.
        - ``correction``, unless the objective ``corrects_sampler``, and ``off_policy_threshold``: factors.
        - ``entropy_mask``: a factor, or inside the objective if its ``level`` is that of sequences.
        - rows with advantage 0: dropped before the pass where ``drops_zero_advantage``, which changes no gradient.

        Arguments and result as in ``loss``, with the current policy's scores.
        """
        current, counted = scores.logprobs.detach(), batch.counted
        token_loss = self.objective.token_loss(scores.logprobs, batch)
        if not isinstance(token_loss, TokenLoss):
            raise UserError(
                f"--model.objective {type(self.objective).__name__} returned {type(token_loss).__name__}: return "
                "grpo_lightning.objectives.TokenLoss(values, metrics)"
            )
        values = token_loss.values
        if values.shape != batch.completion_mask.shape:  # it would be broadcast to nonsense
            raise UserError(
                f"--model.objective {type(self.objective).__name__} returned values {list(values.shape)} for tokens "
                f"{list(batch.completion_mask.shape)}: return one for each token"
            )
        for factors in self._factors(current, batch, figures):
            # Not by a product alone: 0 · inf is NaN.
            values = torch.where(factors != 0, values * factors, 0.0)
        if token_loss.penalty is not None:
            values = values + token_loss.penalty
        loss = masked_sum(values, batch.loss_weights)
        if self.entropy_coef:
            bonus = masked_sum(scores.entropy, counted) / max(window.tokens, 1.0)
            loss = loss - self.entropy_coef * bonus * self.trainer.world_size

        figures.add({"entropy": scores.entropy, **token_loss.metrics}, counted, shares=token_loss.shares)
        sampler_gap.add_gap(figures, current, batch, counted)
        sequences = (counted.sum(dim=1) > 0).sum()
        for name, per_token in (token_loss.sequence_sums or {}).items():
            figures.add_sums(name, quotient, masked_sum(per_token, counted), sequences)
        figures.add_total("loss", loss / self.trainer.world_size)
        return loss

    def _factors(self, current: Tensor, batch: RolloutBatch, figures: TokenMeans) -> list[Tensor]:
        """What the policy term is multiplied by, each ``[B, T]``."""
        factors = []
        if self.correction is not None and not self.objective.corrects_sampler:
            factors.append(self.correction.weights(current, batch))
            self.correction.add_figures(figures, current, batch)
        if self.off_policy_mask is not None:
            factors.append(self.off_policy_mask.weights(current, batch))
            self.off_policy_mask.add_figures(figures, current, batch)
        if batch.entropy_mask is not None and self.objective.level == "token":
            factors.append(batch.entropy_mask)
        return factors

    def stop_on_mismatch(self, figures: dict[str, float], *, truncated: bool) -> None:
        """Stop the run if the sampler has other weights than the policy.

        Args:
            figures: of an optimizer step, over all ranks.
            truncated: True if sampling cut the distribution.
        """
        gap = figures.get(sampler_gap.MEAN, 0.0)
        # A NaN of the trainer's passes here, and ``take_step`` skips the step; the collector stops at the sampler's.
        if gap > self.max_logp_difference and not truncated:
            raise RunStopped(
                f"the sampler's log-probabilities differ from the trainer's by {gap:.3g} nats on average (bound: "
                f"--model.max_logp_difference {self.max_logp_difference}): it has other weights than the policy"
            )
