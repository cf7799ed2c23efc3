"""Corrections for a sampler that is not quite the policy that is trained.

vLLM and the trainer compute the same weights with other kernels and in other precisions, so the completions come from a
policy μ that differs a little from the trainer's π: even the first step is off policy. Importance weights π/μ make up
for it. They multiply an objective's policy term only; what a token counts (its loss weight, the denominators) and the
KL term stay as they are.

Every figure here is over the sequences that reached the backward pass, micro-batches and ranks summed before anything
is divided. A sequence left out for its zero advantage was never scored by the trainer: its ratio is not known.
"""

from __future__ import annotations

import copy
from typing import Literal

import torch
from torch import Tensor

from grpo_lightning.engines.base import Sampling
from grpo_lightning.errors import UserError
from grpo_lightning.functional.importance import MAX_LOG_RATIO
from grpo_lightning.objectives.base import Level
from grpo_lightning.rollout.sampler_gap import sampler_log_ratio
from grpo_lightning.token_means import TokenMeans
from grpo_lightning.types import RolloutBatch

RATIO = "sampling/importance_sampling_ratio"
EFFECTIVE_SAMPLES = "sampling/effective_sample_size"
OUT_OF_BOUNDS = "sampling/out_of_bounds"
OFF_POLICY = "sampling/off_policy"
QUARTILES = 4


class SamplerCorrection:
    """Importance weights w = π(trainer) / π(sampler), at the weights of the policy that sampled, kept within bounds.

    - token, truncate, upper 2: truncated importance sampling (TIS; Yao et al. 2025, "Your efficient RL framework
      secretly brings you off-policy RL training"). Varies little, and is biased: a token's weight says nothing of how
      likely the text before it was.
    - token, mask, lower 0.5, upper 5: IcePop (arXiv 2510.18855).
    - sequence: the product over a sequence's tokens, unbiased without bounds; the longer the sequence, the farther it
      strays from 1, so that bounds drop the long sequences first: watch ``sampling/out_of_bounds/*_quartile_4``.
    - geometric: the geometric mean over a sequence's tokens, which does not grow with length.

    These are the modes of TRL's ``vllm_importance_sampling_mode``, whose defaults are sequence, mask and upper 3, and
    geometric, which verl has for masks.

    The level has to be that of the objective's gradient. Where a token's value is a function of its whole sequence
    (GSPO, LUSPO, GMPO, RLOO), the gradient of each spreads over all tokens, and weights w_t by token would weigh the
    sequence by their plain mean, which is next to 1: no correction. So null is ``Objective.level``: token for most;
    geometric for GSPO, LUSPO and GMPO, which turns their ratio exp(mean log π/π_old) into one to the sampler; sequence
    for RLOO, whose action is the whole completion.

    Args:
        level: what one weight belongs to: each token, or a whole sequence; null is the objective's own.
        action: truncate sets a weight outside the bounds to the bound; mask sets it to 0.
        lower: smallest weight left as it is, at most 1; None, or 0, is no bound.
        upper: largest weight left as it is, at least 1; None, or infinity, is no bound.
    """

    def __init__(
        self,
        *,
        level: Level | None = None,
        action: Literal["truncate", "mask"] = "truncate",
        lower: float | None = None,
        upper: float | None = 2.0,
    ) -> None:
        if lower is not None and not 0 <= lower <= 1:
            raise UserError(f"--model.correction.lower {lower}: must lie between 0 and 1, the ratio without a mismatch")
        if upper is not None and not upper >= 1:
            raise UserError(f"--model.correction.upper {upper}: must be at least 1, the ratio without a mismatch")
        self.level = level
        self.action = action
        self.lower = 0.0 if lower is None else lower
        self.upper = torch.inf if upper is None else upper

    def of_level(self, level: Level) -> SamplerCorrection:
        """The same, of that level if it has none of its own."""
        correction = copy.copy(self)
        correction.level = self.level or level
        return correction

    def ratio(self, logprobs: Tensor, batch: RolloutBatch) -> Tensor:
        """The weights before they are bounded, float64, ``[B, T]``; arguments as in ``weights``."""
        mask = batch.completion_mask
        # float64: the logarithms are nearly equal, and a sequence adds up thousands of their differences.
        log_ratio = torch.where(mask > 0, sampler_log_ratio(logprobs, batch).double(), 0.0)
        if self.level in ("sequence", "geometric"):
            log_ratio = log_ratio.sum(dim=1, keepdim=True)
        if self.level == "geometric":
            log_ratio = log_ratio / mask.sum(dim=1, keepdim=True).clamp(min=1)
        return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().expand(mask.shape)

    def weights(self, logprobs: Tensor, batch: RolloutBatch) -> Tensor:
        """What to multiply the policy's term of each token by.

        Args:
            logprobs: of the current policy; they count only where ``batch.old_logprobs`` is None, ``[B, T]``.
            batch: holds the sampler's log-probabilities and, where the policy has moved on, those of the policy that
                sampled.

        Returns:
            Without gradient; 1 where ``completion_mask`` is 0, ``[B, T]``.
        """
        bounded = self._bounded(self.ratio(logprobs, batch))
        return torch.where(batch.completion_mask > 0, bounded, 1.0).to(logprobs.dtype)

    def add_figures(self, figures: TokenMeans, logprobs: Tensor, batch: RolloutBatch) -> None:
        """Add what the correction did to one micro-batch.

        - ``sampling/out_of_bounds/{tokens,sequences}``: share of the tokens whose ratio was truncated or masked, and of
          the sequences with such a token; ``..._quartile_1`` (shortest) to ``_4`` (longest completions of the rollout).
        - ``sampling/importance_sampling_ratio/{min,mean,max}``: of the weights in use, bounds applied, as TRL has it;
          over tokens, or over sequences where a sequence has one weight.
        - ``sampling/effective_sample_size``: (Σw)² / Σw² over the same weights, as a share of their number: 1 if all
          are equal.

        Args:
            figures: of the optimizer step.
            logprobs: as in ``weights``, ``[B, T]``.
            batch: likewise.
        """
        ratio = self.ratio(logprobs, batch)
        _add_shares(figures, OUT_OF_BOUNDS, self._outside(ratio), batch)
        weights, counted = self._bounded(ratio), batch.counted
        if self.level in ("sequence", "geometric"):
            weights, counted = weights[:, :1], counted.amax(dim=1, keepdim=True)
        figures.add_min(f"{RATIO}/min", weights, counted)
        figures.add_mean(f"{RATIO}/mean", weights, counted)
        figures.add_max(f"{RATIO}/max", weights, counted)
        used = torch.where(counted > 0, weights, 0.0)
        figures.add_sums(EFFECTIVE_SAMPLES, _effective_share, used.sum(), used.square().sum(), counted.sum())

    def _outside(self, ratio: Tensor) -> Tensor:
        return (ratio < self.lower) | (ratio > self.upper)

    def _bounded(self, ratio: Tensor) -> Tensor:
        if self.action == "truncate":
            return ratio.clamp(self.lower, self.upper)
        return ratio.masked_fill(self._outside(ratio), 0.0)


class OffPolicyMask:
    """Leaves out what was bad and is by now unlikely: weight 0 for tokens with a negative advantage in sequences with

        1/T Σ_t log(π(sampler) / π(current)) > threshold

    (DeepSeek-V3.2, arXiv 2512.02556, eq. 9; TRL's ``off_policy_mask_threshold``). The distance is from the *current*
    policy and so grows with every step on the same completions. It belongs to a sequence, the sign of the advantage to
    a token: with one advantage per completion whole sequences are left out, with one per token only the negative ones.

    Args:
        threshold: most nats per token that a sequence with a negative advantage may have lost; ``--model.
            off_policy_threshold``.
    """

    def __init__(self, threshold: float) -> None:
        if not threshold > 0:
            raise UserError(f"--model.off_policy_threshold {threshold}: nats per token, must be positive; null is off")
        self.threshold = threshold

    def weights(self, logprobs: Tensor, batch: RolloutBatch) -> Tensor:
        """What to multiply the policy's term of each token by.

        Args:
            logprobs: of the current policy, ``[B, T]``.
            batch: holds the sampler's log-probabilities and the advantages.

        Returns:
            1 for a token that counts, 0 for one that does not, without gradient, ``[B, T]``.
        """
        return (~self._masked(logprobs, batch)).to(logprobs.dtype)

    def add_figures(self, figures: TokenMeans, logprobs: Tensor, batch: RolloutBatch) -> None:
        """Add the share of tokens and sequences that were left out, named as those of ``SamplerCorrection`` with
        ``sampling/off_policy``, and the distance, averaged over sequences: ``sampling/off_policy/kl``."""
        _add_shares(figures, OFF_POLICY, self._masked(logprobs, batch), batch)
        figures.add_mean(f"{OFF_POLICY}/kl", _distance(logprobs, batch), batch.counted.amax(dim=1, keepdim=True))

    def _masked(self, logprobs: Tensor, batch: RolloutBatch) -> Tensor:
        far = _distance(logprobs, batch) > self.threshold
        return far & (batch.advantages < 0) & (batch.completion_mask > 0)


def refuse_truncated_sampling(sampling: Sampling, *, flag: str, way_out: str) -> None:
    """Ratios are no correction where the sampler cuts its distribution.

    Its probabilities are then those of the tokens that it kept, too large by design, and what it cut is never seen, so
    that no weight can make up for it.

    Args:
        sampling: how completions are drawn.
        flag: of what takes the ratio, ``--model.correction``.
        way_out: what to set instead.

    Raises:
        UserError: if top_p, top_k or min_p cut the distribution.
    """
    neutral = {"top_p": 1, "top_k": 0, "min_p": 0}
    cutting = {name: value for name, value in neutral.items() if getattr(sampling, name) != value}
    if cutting:
        given = ", ".join(f"--rollout.{name} {getattr(sampling, name)}" for name in cutting)
        undone = " ".join(f"--rollout.{name} {value}" for name, value in cutting.items())
        raise UserError(
            f"{given}: {flag} compares the sampler's probabilities with the policy's own, and these are of a cut "
            f"distribution; set {undone}, or {way_out}"
        )


def _distance(logprobs: Tensor, batch: RolloutBatch) -> Tensor:
    """Mean of log π(sampler) - log π(current) over a sequence, float64, ``[B, 1]``."""
    assert batch.sampling_logprobs is not None
    mask = batch.completion_mask
    lost = torch.where(mask > 0, (batch.sampling_logprobs - logprobs.detach()).double(), 0.0)
    return lost.sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)


def _add_shares(figures: TokenMeans, name: str, affected: Tensor, batch: RolloutBatch) -> None:
    """Share of tokens and of sequences with such a token, of all and of each quarter by length.

    Args:
        figures: of the optimizer step.
        name: prefix of the figures.
        affected: True for a token to count, ``[B, T]``.
        batch: of which the counted tokens are the whole.
    """
    counted = batch.counted
    sequences = counted.amax(dim=1)
    parts = {"": torch.ones_like(sequences)}
    if batch.length_quartile is not None:
        parts |= {f"_quartile_{q + 1}": (batch.length_quartile == q).float() for q in range(QUARTILES)}
    for part, rows in parts.items():
        figures.add_mean(f"{name}/tokens{part}", affected, counted * rows[:, None])
        figures.add_mean(f"{name}/sequences{part}", affected.any(dim=1), sequences * rows)


def _effective_share(total: float, squares: float, count: float) -> float | None:
    if not count:
        return None
    return total**2 / (squares * count) if squares else 0.0
