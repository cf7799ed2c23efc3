"""What the policy, the reference and the critic say of a rollout's completions before the first optimizer step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from grpo_lightning import ranks
from grpo_lightning.functional.logprobs import TokenScores
from grpo_lightning.rollout.sampler_gap import gap_figures
from grpo_lightning.rollout.windows import by_length
from grpo_lightning.types import Layout, RolloutBatch, SequenceBatch, Window

PROBE_ROWS = 8
"""Completions on which sampler and trainer are compared where none is trained on."""


@dataclass(frozen=True, kw_only=True)
class Learner:
    """What a rollout asks of the module that learns from it; every function goes without gradient."""

    score_old: Callable[[SequenceBatch], TokenScores]
    """By the policy as it is; called only where that is needed."""
    score_reference: Callable[[SequenceBatch], Tensor] | None = None
    """Log-probabilities of the reference, ``[B, T]``; None if the objective needs none."""
    score_values: Callable[[SequenceBatch], Tensor] | None = None
    """The critic's value of each position, ``[B, T]``; None without a critic."""
    reward_penalty: Callable[[Tensor, Tensor], Tensor] | None = None
    """From log-probabilities of policy and reference to what is taken off the reward of each token, β · KL, ``[B, T]``;
    None where the KL term, if there is one, is in the loss."""
    top_entropy_quantile: float = 1.0
    """Share of the tokens, those of the highest entropy, that the policy learns from."""
    drops_zero_advantage: bool = False
    """Whether sequences with advantage 0 may be left out of the backward without changing the gradient."""
    layout: Layout = "padded"
    """How the policy computes the sequences of a micro-batch, and so what they count in it."""

    @property
    def precedes_advantages(self) -> bool:
        """True if advantages depend on what the passes say."""
        return self.reward_penalty is not None or self.score_values is not None


def run_passes(
    windows: list[Window[RolloutBatch]], learner: Learner, *, off_policy: bool, device: torch.device | str
) -> None:
    """Fill in what later steps need, in the very micro-batches that are trained: so rounding is the same and the first
    ratio is 1.

    Args:
        windows: of a rollout; their micro-batches are moved to ``device``.
        learner: does the passes.
        off_policy: True if a step of this rollout comes after another one, so that the old policy must be kept.
        device: of the policy.
    """
    needs_old = off_policy or learner.reward_penalty is not None or learner.top_entropy_quantile < 1
    for window in windows:
        window.micro_batches = [micro_batch.to(device) for micro_batch in window.micro_batches]
        entropies = []
        for micro_batch in window.micro_batches:
            if needs_old:
                scores = learner.score_old(micro_batch)
                micro_batch.old_logprobs = scores.logprobs
                entropies.append(scores.entropy)
            if learner.score_reference is not None:
                micro_batch.ref_logprobs = learner.score_reference(micro_batch)
            if learner.score_values is not None:
                micro_batch.values = learner.score_values(micro_batch)
        if learner.top_entropy_quantile < 1:
            _mask_low_entropy(window, entropies, share=learner.top_entropy_quantile)


def _mask_low_entropy(window: Window[RolloutBatch], entropies: list[Tensor], *, share: float) -> None:
    """Keep the ``share`` of an optimizer step's tokens, over all ranks, whose entropy is highest (arXiv 2506.01939)."""
    mine = [e[micro_batch.counted > 0] for e, micro_batch in zip(entropies, window.micro_batches, strict=True)]
    flat = torch.cat(mine).cpu() if mine else torch.zeros(0)
    padded = torch.full((int(ranks.all_max(torch.tensor(len(flat)))),), torch.nan, dtype=flat.dtype)
    padded[: len(flat)] = flat
    everyone = ranks.gather_rows(padded).numpy()
    everyone = everyone[~np.isnan(everyone)]
    threshold = float(np.quantile(everyone, 1 - share)) if len(everyone) else 0.0
    for entropy, micro_batch in zip(entropies, window.micro_batches, strict=True):
        micro_batch.entropy_mask = (entropy >= threshold).float()


def dense(windows: list[Window[RolloutBatch]], rows: int, length: int, of: Callable[[RolloutBatch], Tensor]) -> Tensor:
    """Figures of tokens in the order of the completions, on the CPU, 0 elsewhere, float64 ``[rows, length]``.

    Args:
        windows: after the passes.
        rows: completions of this rank.
        length: columns of the result.
        of: picks the figures of a micro-batch, ``[B, T]``.
    """
    result = torch.zeros(rows, length, dtype=torch.float64)
    for micro_batch in (micro_batch for window in windows for micro_batch in window.micro_batches):
        assert micro_batch.completion_numbers is not None
        real = (micro_batch.counted.sum(dim=1) > 0).cpu()  # not the row that only keeps a rank in step
        values = (of(micro_batch) * micro_batch.completion_mask).double().cpu()[real]
        result[micro_batch.completion_numbers.cpu()[real], : values.shape[1]] = values
    return result


def untrained_gap(
    batch: RolloutBatch,
    windows: list[Window[RolloutBatch]],
    learner: Learner,
    *,
    micro_batch_tokens: int,
    device: torch.device | str,
) -> dict[str, float]:
    """Sampler against trainer where nothing will be trained on, perhaps because the sampler writes rubbish."""
    if windows[0].micro_batches or not windows[0].tokens:
        return {}
    trained = batch.completion_mask.any(dim=1)  # not what was cut, where that is masked
    longest = by_length((batch.sequence_lengths * trained).tolist(), micro_batch_tokens)[0][:PROBE_ROWS]
    probe = batch.rows(torch.tensor(longest)).to(device)
    return gap_figures(learner.score_old(probe).logprobs, probe)
