"""What the tests of formulas share: the objectives, a ragged batch far off policy, and loss and gradient of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from grpo_lightning.functional.masking import masked_sum
from grpo_lightning.functional.reduction import Reduction
from grpo_lightning.objectives import (
    CISPO,
    GMPO,
    GSPO,
    LUSPO,
    RLOO,
    SAPO,
    VESPO,
    ClippedObjective,
    Objective,
    Reinforce,
)
from grpo_lightning.types import RolloutBatch
from tests.unit.objectives import oracle


@dataclass(frozen=True)
class Case:
    """An objective with settings that tell its parts from each other, and the oracle's formula with the same."""

    objective: type[Objective]
    settings: dict[str, Any]
    formula: str
    formula_settings: dict[str, float] = field(default_factory=dict)
    one_ratio: bool = False
    """All tokens of a sequence share one ratio *and* its gradient."""
    times_length: bool = False
    """That ratio is a product, whose gradient is the tokens' sum instead of their mean."""

    def make(self, **kl: Any) -> Objective:
        return self.objective(**self.settings, **kl)


CLIP = {"epsilon": 0.2, "epsilon_high": 0.28}
BOUNDS = {"low": 0.2, "high": 0.28}
UNDER_TEST = {
    "clipped": Case(ClippedObjective, CLIP, "clipped", BOUNDS),
    "dual clip": Case(ClippedObjective, CLIP | {"delta": 3.0}, "clipped", BOUNDS | {"delta": 3.0}),
    "gspo": Case(GSPO, CLIP, "gspo", BOUNDS, one_ratio=True),
    "gspo, token gradient": Case(GSPO, CLIP | {"token_gradient": True}, "gspo_token", BOUNDS),
    "luspo": Case(LUSPO, CLIP, "gspo", BOUNDS, one_ratio=True),
    "rloo": Case(RLOO, CLIP, "rloo", BOUNDS, one_ratio=True, times_length=True),
    "cispo": Case(CISPO, CLIP, "cispo", BOUNDS),
    "cispo, no lower bound": Case(CISPO, {"epsilon_high": 0.28}, "cispo", BOUNDS | {"low": 1.0}),
    "sapo": Case(
        SAPO,
        {"temperature_pos": 1.0, "temperature_neg": 1.5},
        "sapo",
        {"tau": 1.0, "tau_negative": 1.5},
    ),
    "gmpo": Case(GMPO, {"epsilon": 0.4, "epsilon_high": 0.5}, "gmpo", {"low": 0.4, "high": 0.5}, one_ratio=True),
    "vespo": Case(VESPO, {}, "vespo", {"k": 2.0, "rate": 3.0, "k_negative": 3.0, "rate_negative": 2.0}),
    "reinforce": Case(Reinforce, {}, "reinforce"),
}

LONGEST = 7
"""Length limit of a completion, longer than any of the batch."""
OTHER = 5.0
"""Stands wherever nothing is trained: it must not count."""

MASK = [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 1, 1, 0], [1, 1, 0, 0, 0], [1, 1, 1, 1, 0], [1, 0, 0, 0, 0]]
# Ratios and their geometric means lie above, within and below every clip range, for advantages of either sign.
LOG_RATIOS = [
    [0.6, 0.9, 0.05, 0.3, 0.35],
    [-0.7, -0.45, 0.1, OTHER, OTHER],
    [1.5, OTHER, -0.9, -0.3, OTHER],
    [-0.5, -0.1, OTHER, OTHER, OTHER],
    [0.4, -0.5, 0.01, 0.2, OTHER],
    [0.4, OTHER, OTHER, OTHER, OTHER],
]
REF_DIFFERENCES = [
    [0.5, -0.4, 0.02, -1.1, 0.3],
    [-0.2, 0.6, 1.2, OTHER, OTHER],
    [0.1, OTHER, -0.7, 0.4, OTHER],
    [-0.9, 0.25, OTHER, OTHER, OTHER],
    [0.8, -0.15, -0.6, 0.33, OTHER],
    [-0.5, OTHER, OTHER, OTHER, OTHER],
]
LOGPROBS = [[-0.1 - 0.37 * ((7 * i + 3 * t) % 11) for t in range(5)] for i in range(6)]
PER_SEQUENCE = [[1.3], [-0.9], [-1.7], [0.6], [0.0], [-0.8]]
PER_TOKEN = [
    [1.3, -0.4, 0.0, 0.7, -2.0],
    [-0.9, 0.5, 1.1, OTHER, OTHER],
    [-1.7, OTHER, 0.3, -0.6, OTHER],
    [0.6, -1.2, OTHER, OTHER, OTHER],
    [-0.2, -1.4, 0.9, 1.6, OTHER],
    [-0.8, OTHER, OTHER, OTHER, OTHER],
]


def fixed_batch(dtype: torch.dtype, *, per_token: bool) -> tuple[Tensor, RolloutBatch]:
    """Log-probabilities and the rest of the batch.

    Args:
        dtype: of every float.
        per_token: advantages ``[B, T]`` rather than ``[B, 1]``.
    """
    logprobs, ratios, differences = (
        torch.tensor(x, dtype=torch.float64) for x in (LOGPROBS, LOG_RATIOS, REF_DIFFERENCES)
    )
    return batch(
        logprobs.to(dtype),
        mask=torch.tensor(MASK, dtype=dtype),
        advantages=torch.tensor(PER_TOKEN if per_token else PER_SEQUENCE, dtype=dtype),
        old=(logprobs - ratios).to(dtype),
        ref=(logprobs + differences).to(dtype),
    )


def batch(
    logprobs: Tensor,
    *,
    mask: Tensor,
    advantages: Tensor,
    old: Tensor | None,
    ref: Tensor | None,
    sampling: Tensor | None = None,
) -> tuple[Tensor, RolloutBatch]:
    """A rollout whose prompts are one token long; every tensor ``[B, T]``, the advantages also ``[B, 1]``."""
    rows, columns = mask.shape
    spans = (mask * torch.arange(1, columns + 1)).amax(dim=1).long()
    return logprobs, RolloutBatch(
        input_ids=torch.zeros(rows, columns + 1, dtype=torch.long),
        sequence_lengths=1 + spans,
        prompt_lengths=torch.ones(rows, dtype=torch.long),
        completion_mask=mask,
        advantages=advantages,
        old_logprobs=old,
        ref_logprobs=ref,
        sampling_logprobs=sampling,
    )


def rows_of(logprobs: Tensor, rollout: RolloutBatch) -> list[oracle.Row]:
    """The trained tokens, for the oracle."""
    old = logprobs if rollout.old_logprobs is None else rollout.old_logprobs
    ref = logprobs if rollout.ref_logprobs is None else rollout.ref_logprobs
    advantages = rollout.advantages.expand_as(logprobs)
    return [
        oracle.Row(*(tuple(x[i][kept].tolist()) for x in (logprobs, old, ref, advantages)))
        for i, kept in enumerate(rollout.completion_mask.bool())
    ]


def weighted(objective: Objective, logprobs: Tensor, rollout: RolloutBatch, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Loss, scalar, and its gradient by the log-probabilities, ``[B, T]``, as the module makes them."""
    logprobs = logprobs.detach().clone().requires_grad_()
    terms = objective.token_loss(logprobs, rollout)
    loss = masked_sum(terms.values, weights)
    if terms.penalty is not None:
        loss = loss + masked_sum(terms.penalty, weights)
    (gradient,) = torch.autograd.grad(loss, logprobs)
    return loss.detach(), gradient


def reduced(
    objective: Objective, logprobs: Tensor, rollout: RolloutBatch, reduction: Reduction
) -> tuple[Tensor, Tensor]:
    """Loss and gradient where the batch is the whole optimizer step."""
    mask = rollout.completion_mask
    weights = reduction(mask, tokens=float(mask.sum()), sequences=float(len(mask)), max_length=LONGEST)
    return weighted(objective, logprobs, rollout, weights)


def spread(slopes: Sequence[Sequence[float]], mask: Tensor) -> Tensor:
    """The oracle's gradient in place, 0 where nothing is trained, float64, ``[B, T]``."""
    placed = torch.zeros(mask.shape, dtype=torch.float64)
    placed[mask.bool()] = torch.tensor([slope for row in slopes for slope in row], dtype=torch.float64)
    return placed
