"""The same batch through TRL 1.16's own loss code and through ours; where the two differ on purpose, by how much.

The batch is ``tests/unit/objectives/cases.py``'s: ragged, far off policy, advantages of both signs and 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from grpo_lightning.functional import kl
from grpo_lightning.functional.masking import masked_sum
from grpo_lightning.functional.reduction import (
    Reduction,
    constant_length,
    sequence_mean,
    sequence_sum,
    token_mean,
)
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
    RegularizedObjective,
    Reinforce,
)
from grpo_lightning.rollout.sampler_correction import OffPolicyMask, SamplerCorrection
from grpo_lightning.types import RolloutBatch
from tests.integration.trl_losses import our_loss, trl_loss
from tests.unit.objectives.cases import LONGEST, fixed_batch

pytestmark = pytest.mark.integration
pytest.importorskip("trl", reason="TRL is not installed; the dev extra has it")

TOLERANCE = 1e-6
BETA = 0.3
CLIP = {"epsilon": 0.2, "epsilon_high": 0.28}
GMPO_CLIP = {"epsilon": 0.4, "epsilon_high": 0.4}


@dataclass(frozen=True)
class Pair:
    """The same algorithm in TRL's settings and in ours."""

    theirs: dict[str, Any]
    ours: type[RegularizedObjective]
    reduction: Reduction
    settings: dict[str, Any] = field(default_factory=dict)
    token_advantages: bool = True
    """TRL takes advantages per token."""


SEQUENCE = {"importance_sampling_level": "sequence"}
PAIRS = {
    "grpo": Pair({"loss_type": "grpo", **CLIP}, ClippedObjective, sequence_mean, CLIP),
    "grpo, dual clip": Pair(
        {"loss_type": "grpo", "delta": 3.0, **CLIP}, ClippedObjective, sequence_mean, {"delta": 3.0, **CLIP}
    ),
    "dr_grpo": Pair({"loss_type": "dr_grpo", **CLIP}, ClippedObjective, constant_length, CLIP),
    "dapo": Pair({"loss_type": "dapo", **CLIP}, ClippedObjective, token_mean, CLIP),
    "bnpo": Pair({"loss_type": "bnpo", **CLIP}, ClippedObjective, token_mean, CLIP),
    "gspo": Pair({"loss_type": "grpo", **SEQUENCE, **CLIP}, GSPO, sequence_mean, CLIP),
    "gspo, paper's clip": Pair(
        {"loss_type": "grpo", **SEQUENCE, "epsilon": 3e-4, "epsilon_high": 4e-4}, GSPO, sequence_mean
    ),
    "luspo": Pair({"loss_type": "luspo", **SEQUENCE, **CLIP}, LUSPO, sequence_sum, CLIP),
    "cispo": Pair({"loss_type": "cispo", "epsilon_high": 5.0}, CISPO, token_mean),
    "cispo, bound 1.28": Pair({"loss_type": "cispo", "epsilon_high": 1.28}, CISPO, token_mean, {"epsilon_high": 0.28}),
    "sapo": Pair({"loss_type": "sapo"}, SAPO, sequence_mean),
    "vespo": Pair({"loss_type": "vespo"}, VESPO, token_mean),
    "gmpo": Pair({"trainer": "gmpo", **GMPO_CLIP}, GMPO, sequence_mean, token_advantages=False),
}
"""Settings left out are the defaults on both sides."""
ONE_RATIO = {"gspo", "gspo, paper's clip", "luspo", "gmpo"}
"""Objectives whose ratio is a sequence's: TRL multiplies the KL by it or not at all."""


def batch(*, per_token: bool = False, on_policy: bool = False) -> tuple[Tensor, RolloutBatch]:
    logprobs, rollout = fixed_batch(torch.float64, per_token=per_token)
    return logprobs, dataclasses.replace(rollout, old_logprobs=None) if on_policy else rollout


def theirs(logprobs: Tensor, rollout: RolloutBatch, settings: dict[str, Any], **more: Any) -> tuple[Tensor, Tensor]:
    return trl_loss(logprobs, rollout, **{"max_completion_length": LONGEST, **settings, **more})


def assert_agree(ours: tuple[Tensor, Tensor], others: tuple[Tensor, Tensor]) -> None:
    assert others[1].abs().max() > 1e-3
    for mine, other in zip(ours, others, strict=True):
        assert (mine - other).abs().max().item() < TOLERANCE


@pytest.mark.parametrize("on_policy", [False, True])
@pytest.mark.parametrize("name", PAIRS)
def test_the_policy_term(name: str, on_policy: bool) -> None:
    pair = PAIRS[name]
    for per_token in {False, pair.token_advantages}:
        given = batch(per_token=per_token, on_policy=on_policy)
        assert_agree(our_loss(*given, pair.ours(**pair.settings), pair.reduction), theirs(*given, pair.theirs))


@pytest.mark.parametrize("on_policy", [False, True])
@pytest.mark.parametrize(
    ("name", "times_ratio"),
    # The others differ on purpose: test_the_kl_beside_a_sequence_ratio, test_gmpo_has_no_ratio_in_its_kl.
    [(name, times_ratio) for name in PAIRS for times_ratio in (False, True) if not (times_ratio and name in ONE_RATIO)],
)
def test_with_the_kl_in_the_loss(name: str, times_ratio: bool, on_policy: bool) -> None:
    pair = PAIRS[name]
    given = batch(on_policy=on_policy)
    objective = pair.ours(**pair.settings, beta=BETA, kl_ratio=times_ratio)
    others = theirs(*given, pair.theirs, beta=BETA, use_bias_correction_kl=times_ratio)
    assert_agree(our_loss(*given, objective, pair.reduction), others)


def test_rloo() -> None:
    """The whole completion is one action; TRL has the KL in the reward, so it is not in the loss."""
    for on_policy in (False, True):
        logprobs, rollout = batch()
        if on_policy:
            rollout = dataclasses.replace(rollout, old_logprobs=logprobs)
        others = theirs(logprobs, rollout, {"trainer": "rloo"})
        objective = RLOO(beta=BETA, kl_estimator="k1", kl_in="reward")
        assert_agree(our_loss(logprobs, rollout, objective, sequence_mean), others)
    # On policy it is REINFORCE on sequences.
    _, gradient = our_loss(logprobs, rollout, Reinforce(), sequence_sum)
    assert (gradient - others[1]).abs().max().item() < TOLERANCE


@pytest.mark.parametrize("name", [name for name in PAIRS if name != "bnpo"])
def test_over_two_micro_batches(name: str) -> None:
    """TRL's micro-batches, divided as TRL divides, add up to our one optimizer step."""
    pair = PAIRS[name]
    logprobs, rollout = batch()
    assert_agree(
        our_loss(logprobs, rollout, pair.ours(**pair.settings), pair.reduction),
        _in_two_micro_batches(logprobs, rollout, pair.theirs),
    )


def _in_two_micro_batches(logprobs: Tensor, rollout: RolloutBatch, settings: dict[str, Any]) -> tuple[Tensor, Tensor]:
    results = []
    for rows in (slice(0, 3), slice(3, 6)):
        part = dataclasses.replace(
            rollout,
            **{
                f.name: value[rows]
                for f in dataclasses.fields(rollout)
                if isinstance(value := getattr(rollout, f.name), Tensor)
            },
        )
        tokens = float(rollout.completion_mask.sum())
        results.append(theirs(logprobs[rows], part, settings, accumulation=2, tokens=tokens))
    return results[0][0] + results[1][0], torch.cat([results[0][1], results[1][1]])


# --- differences on purpose -------------------------------------------------------------------------------------------


def test_bnpo_divides_each_micro_batch_by_its_own_tokens() -> None:
    """TRL's bnpo changes with the micro-batch size; our token mean is over the optimizer step, as TRL's dapo is."""
    pair = PAIRS["bnpo"]
    logprobs, rollout = batch()
    loss, gradient = _in_two_micro_batches(logprobs, rollout, pair.theirs)
    mask = rollout.completion_mask
    tokens = mask.sum()
    own = torch.cat([mask[:3] * tokens / mask[:3].sum(), mask[3:] * tokens / mask[3:].sum()]) / 2
    ours = our_loss(logprobs, rollout, pair.ours(**pair.settings), pair.reduction)
    assert (gradient - own * ours[1]).abs().max().item() < TOLERANCE
    assert abs(loss - ours[0]) > 0.01


def test_the_kl_beside_a_sequence_ratio() -> None:
    """TRL multiplies each token's KL by the sequence's ratio; ours always takes the token's own ratio, which is what
    makes the gradient that of the reverse KL."""
    logprobs, rollout = batch()
    mask, old, ref = rollout.completion_mask, rollout.old_logprobs, rollout.ref_logprobs
    weights = sequence_mean(mask, tokens=1, sequences=len(mask), max_length=1)

    def penalty(ratio: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        current = logprobs.clone().requires_grad_()
        value = BETA * masked_sum(kl.k3(current, ref) * ratio((current - old) * mask), weights)
        return value.detach(), torch.autograd.grad(value, current)[0]

    by_token = penalty(lambda d: d.exp())
    by_sequence = penalty(lambda d: (d.sum(1, keepdim=True) / mask.sum(1, keepdim=True)).exp())
    others = theirs(logprobs, rollout, PAIRS["gspo"].theirs, beta=BETA, use_bias_correction_kl=True)
    ours = our_loss(logprobs, rollout, GSPO(**CLIP, beta=BETA), sequence_mean)
    for mine, other, token, sequence in zip(ours, others, by_token, by_sequence, strict=True):
        assert ((other - mine) - (sequence - token)).abs().max().item() < TOLERANCE
    assert (by_sequence[1] - by_token[1]).abs().max() > 1e-3


def test_gmpo_has_no_ratio_in_its_kl() -> None:
    """TRL's GMPO ignores ``use_bias_correction_kl``: it is our ``kl_ratio`` false."""
    given = batch()
    pair = PAIRS["gmpo"]
    others = theirs(*given, pair.theirs, beta=BETA, use_bias_correction_kl=True)
    assert_agree(our_loss(*given, GMPO(beta=BETA, kl_ratio=False), sequence_mean), others)
    assert abs(our_loss(*given, GMPO(beta=BETA), sequence_mean)[0] - others[0]) > 0.001


def test_cispo_left_at_its_defaults_in_trl_is_reinforce_at_a_fifth() -> None:
    """TRL's ``epsilon_high`` is the bound itself and 0.2 where unset: below every ratio of this batch."""
    given = batch()
    _, gradient = theirs(*given, {"loss_type": "cispo"})
    _, reinforce = our_loss(*given, Reinforce(), token_mean)
    assert (gradient - 0.2 * reinforce).abs().max().item() < TOLERANCE


def test_dual_clip_below_the_clip_range_is_refused_here() -> None:
    """There TRL's delta would cut good tokens, too, and let bad ones between it and the range through."""
    logprobs, rollout = batch()
    loss, _ = theirs(logprobs, rollout, PAIRS["grpo"].theirs, delta=1.1)
    unbounded, _ = theirs(logprobs, rollout, PAIRS["grpo"].theirs)
    assert abs(loss - unbounded) > 0.01
    with pytest.raises(ValueError, match=r"delta 1\.1: a ratio above 1 \+ epsilon_high"):
        ClippedObjective(**CLIP, delta=1.1)


# --- what the module adds to an objective -----------------------------------------------------------------------------

ENTROPIES = torch.tensor([[0.1 + ((5 * i + 3 * t) % 17) / 10 for t in range(5)] for i in range(6)], dtype=torch.float64)


def _top_entropy(rollout: RolloutBatch, share: float) -> RolloutBatch:
    threshold = ENTROPIES[rollout.completion_mask > 0].quantile(1 - share)
    return dataclasses.replace(rollout, entropy_mask=(threshold <= ENTROPIES).double())


@pytest.mark.parametrize("name", [name for name in PAIRS if name not in ONE_RATIO])
def test_the_top_entropy_mask(name: str) -> None:
    pair = PAIRS[name]
    logprobs, rollout = batch()
    others = theirs(logprobs, rollout, pair.theirs, beta=BETA, entropies=ENTROPIES, top_entropy_quantile=0.4)
    ours = our_loss(logprobs, _top_entropy(rollout, 0.4), pair.ours(**pair.settings, beta=BETA), pair.reduction)
    assert_agree(ours, others)


def test_the_top_entropy_mask_beside_a_sequence_ratio() -> None:
    """Here every token that is kept has the gradient that it has without a mask, and no other token any. In TRL all
    tokens of a sequence have it, times the share of the sequence that is kept."""
    logprobs, rollout = batch()
    others = theirs(logprobs, rollout, PAIRS["gspo"].theirs, entropies=ENTROPIES, top_entropy_quantile=0.4)
    masked = _top_entropy(rollout, 0.4)
    ours = our_loss(logprobs, masked, GSPO(**CLIP), sequence_mean)
    whole = our_loss(logprobs, rollout, GSPO(**CLIP), sequence_mean)
    kept = masked.entropy_mask * masked.completion_mask
    share = kept.sum(dim=1, keepdim=True) / masked.completion_mask.sum(dim=1, keepdim=True).clamp(min=1)
    assert (ours[1] - whole[1] * kept).abs().max().item() < TOLERANCE
    assert (others[1] - whole[1] * share).abs().max().item() < TOLERANCE


def test_the_entropy_bonus() -> None:
    """A mean over trained tokens whatever the reduction; a gradient by the log-probabilities it has none."""
    logprobs, rollout = batch()
    for name in ("grpo", "dapo", "dr_grpo"):
        pair = PAIRS[name]
        others = theirs(logprobs, rollout, pair.theirs, entropies=ENTROPIES, entropy_coef=0.05)
        objective: Objective = pair.ours(**pair.settings)
        ours = our_loss(logprobs, rollout, objective, pair.reduction, entropies=ENTROPIES, entropy_coef=0.05)
        assert_agree(ours, others)
        assert abs(ours[0] - our_loss(logprobs, rollout, objective, pair.reduction)[0]) > 0.01


def _sampled(rollout: RolloutBatch) -> RolloutBatch:
    gaps = torch.tensor([[((7 * i + 5 * t) % 13 - 6) / 5 for t in range(5)] for i in range(6)], dtype=torch.float64)
    return dataclasses.replace(rollout, sampling_logprobs=rollout.old_logprobs - gaps)


@pytest.mark.parametrize("name", ["grpo", "dapo", "gspo"])
def test_the_sampler_correction_multiplies_the_policy_term_only(name: str) -> None:
    pair = PAIRS[name]
    logprobs, rollout = batch()
    rollout = _sampled(rollout)
    gap = (rollout.old_logprobs - rollout.sampling_logprobs) * rollout.completion_mask
    for level, ratio in (("token", gap.exp()), ("sequence", gap.sum(1, keepdim=True).exp())):
        for action, weights in (("truncate", ratio.clamp(max=1.5)), ("mask", ratio * (ratio <= 1.5))):
            others = theirs(
                *(logprobs, rollout, pair.theirs),
                beta=BETA,
                use_bias_correction_kl=False,
                sampler_ratio=weights,
                use_vllm=True,
                vllm_importance_sampling_correction=True,
            )
            correction = SamplerCorrection(level=level, action=action, upper=1.5)
            objective = pair.ours(**pair.settings, beta=BETA, kl_ratio=False)
            assert_agree(our_loss(logprobs, rollout, objective, pair.reduction, correction=correction), others)


def test_vespo_takes_its_ratio_to_the_sampler() -> None:
    logprobs, rollout = batch()
    rollout = _sampled(rollout)
    ratio = ((rollout.old_logprobs - rollout.sampling_logprobs) * rollout.completion_mask).exp()
    others = theirs(logprobs, rollout, PAIRS["vespo"].theirs, sampler_ratio=ratio, use_vllm=True)
    assert_agree(our_loss(logprobs, rollout, VESPO(), token_mean, correction=SamplerCorrection()), others)


@pytest.mark.parametrize("threshold", [0.01, 0.05])
def test_the_off_policy_mask(threshold: float) -> None:
    logprobs, rollout = batch()
    rollout = _sampled(rollout)
    others = theirs(logprobs, rollout, PAIRS["grpo"].theirs, off_policy_mask_threshold=threshold)
    unmasked = our_loss(logprobs, rollout, ClippedObjective(**CLIP), sequence_mean)
    ours = our_loss(
        logprobs, rollout, ClippedObjective(**CLIP), sequence_mean, off_policy_mask=OffPolicyMask(threshold)
    )
    assert_agree(ours, others)
    assert (ours[1] - unmasked[1]).abs().max() > 1e-3
