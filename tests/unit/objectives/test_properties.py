"""What must hold of every objective on any batch: hypothesis draws the batches.

Each property runs over all objectives (``cases.UNDER_TEST``), and over two of them with k3 times the ratio.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from grpo_lightning.functional import reduction as reductions
from grpo_lightning.functional.reduction import Reduction
from grpo_lightning.objectives import ClippedObjective, Objective
from grpo_lightning.rollout import windows
from grpo_lightning.types import RolloutBatch
from tests.unit.objectives import cases

REDUCTIONS = [
    reductions.token_mean,
    reductions.sequence_mean,
    reductions.sequence_sum,
    reductions.constant_length,
]
KL = {"beta": 0.3, "kl_estimator": "k3", "kl_ratio": True}
POLICIES = ["old_logprobs", "ref_logprobs", "sampling_logprobs"]
"""Log-probabilities that stand in a rollout."""


@dataclass
class Drawn:
    """A random batch in float64 and a reduction."""

    logprobs: Tensor
    rollout: RolloutBatch
    reduction: Reduction

    def result(self, objective: Objective) -> tuple[Tensor, Tensor]:
        return cases.reduced(objective, self.logprobs, self.rollout, self.reduction)

    def with_fields(self, logprobs: Tensor, **fields: Tensor | None) -> Drawn:
        return Drawn(logprobs, dataclasses.replace(self.rollout, **fields), self.reduction)


@st.composite
def drawn(draw: st.DrawFn, *, min_rows: int = 1, on_policy: bool = False, per_token: bool | None = None) -> Drawn:
    """Rows of 0 to 6 trained tokens, with gaps; ratios from 1/4 to 4; advantages of both signs and 0."""
    lengths = draw(st.lists(st.integers(0, 6), min_size=min_rows, max_size=5))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    shape = (len(lengths), max(*lengths, 1))

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(shape, dtype=torch.float64, generator=generator)

    mask = (torch.arange(shape[1]) < torch.tensor(lengths)[:, None]).double() * (uniform(0, 1) < 0.85)
    advantages = uniform(-2, 2) * (uniform(0, 1) < 0.8)
    logprobs = uniform(-5, -0.01)
    spread = 0.0 if on_policy else draw(st.sampled_from([0.05, 0.4, 1.4]))
    if not (draw(st.booleans()) if per_token is None else per_token):
        advantages = advantages[:, :1]
    old = logprobs + uniform(-spread, spread)
    _, rollout = cases.batch(
        logprobs,
        mask=mask,
        advantages=advantages,
        old=draw(st.sampled_from([None, old])) if on_policy else old,
        ref=logprobs + uniform(-1, 1),
        sampling=None if on_policy or not draw(st.booleans()) else old + uniform(-0.2, 0.2),
    )
    return Drawn(logprobs, rollout, draw(st.sampled_from(REDUCTIONS)))


def objectives() -> Iterator[tuple[str, Objective]]:
    for name, case in cases.UNDER_TEST.items():
        yield name, case.make()
    # The term is the same beside every objective, see below.
    for name in ("clipped", "gspo"):
        yield f"{name} with KL", cases.UNDER_TEST[name].make(**KL)


def assert_same(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor], name: str) -> None:
    for a, b, what in zip(found, expected, ("loss", "gradient"), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9, msg=lambda text, what=what: f"{name}, {what}: {text}")


@settings(max_examples=15)
@given(drawn(), st.integers(1, 4), st.sampled_from([0.0, 5.0, math.nan, math.inf, -math.inf]))
def test_padding_does_not_matter(batch: Drawn, extra: int, filling: float) -> None:
    def widen(x: Tensor | None, value: float) -> Tensor | None:
        return None if x is None else torch.nn.functional.pad(x, (0, extra), value=value)

    rollout = batch.rollout
    advantages = rollout.advantages
    wider = batch.with_fields(
        widen(batch.logprobs, filling),
        completion_mask=widen(rollout.completion_mask, 0.0),
        advantages=advantages if advantages.shape[1] == 1 else widen(advantages, filling),
        **{name: widen(getattr(rollout, name), filling) for name in POLICIES},
    )
    for name, objective in objectives():
        loss, gradient = batch.result(objective)
        assert_same(wider.result(objective), (loss, widen(gradient, 0.0)), name)


@settings(max_examples=15)
@given(drawn(), st.sampled_from([math.nan, math.inf, -math.inf]), st.sampled_from(["current", *POLICIES, "all"]))
def test_what_is_masked_never_leaks(batch: Drawn, poison: float, where: str) -> None:
    masked = batch.rollout.completion_mask == 0

    def poisoned(x: Tensor | None, name: str) -> Tensor | None:
        return x.masked_fill(masked, poison) if x is not None and where in (name, "all") else x

    bad = batch.with_fields(
        poisoned(batch.logprobs, "current"),
        **{name: poisoned(getattr(batch.rollout, name), name) for name in POLICIES},
    )
    for name, objective in objectives():
        loss, gradient = batch.result(objective)
        assert bool((gradient[masked] == 0).all()), name
        assert_same(bad.result(objective), (loss, gradient), name)


@settings(max_examples=15)
@given(drawn(min_rows=2), st.randoms(use_true_random=False))
def test_row_order_does_not_matter(batch: Drawn, random) -> None:
    order = list(range(len(batch.rollout)))
    random.shuffle(order)
    index = torch.tensor(order)
    fields = {f.name: getattr(batch.rollout, f.name) for f in dataclasses.fields(batch.rollout)}
    shuffled = batch.with_fields(
        batch.logprobs[index], **{name: x[index] for name, x in fields.items() if isinstance(x, Tensor)}
    )
    for name, objective in objectives():
        loss, gradient = batch.result(objective)
        assert_same(shuffled.result(objective), (loss, gradient[index]), name)


def _cut(
    batch: Drawn, rows: list[int], micro_batch_tokens: int, *, drop_zero_advantage: bool = False
) -> list[RolloutBatch]:
    """The package's own micro-batches of these rows; ``completion_numbers`` says which rows they are."""
    index = torch.tensor(rows)
    numbered = dataclasses.replace(batch.rollout, completion_numbers=torch.arange(len(batch.rollout)))
    (window,) = windows.cut_windows(
        numbered.rows(index),
        updates=1,
        micro_batch_tokens=micro_batch_tokens,
        reduction=batch.reduction,
        max_completion_length=cases.LONGEST,
        keep=(batch.rollout.advantages[index] != 0).any(dim=1) if drop_zero_advantage else None,
    )
    return window.micro_batches


def _summed(batch: Drawn, parts: list[RolloutBatch], objective: Objective) -> tuple[Tensor, Tensor]:
    """Loss and gradient added up over micro-batches, each alone in its forward and backward."""
    total, slopes = torch.zeros((), dtype=torch.float64), torch.zeros_like(batch.logprobs)
    for part in parts:
        assert part.completion_numbers is not None
        assert part.loss_weights is not None
        width = part.completion_mask.shape[1]
        loss, gradient = cases.weighted(
            objective, batch.logprobs[part.completion_numbers, :width], part, part.loss_weights
        )
        total += loss
        slopes[:, :width].index_add_(0, part.completion_numbers, gradient)
    return total, slopes


@settings(max_examples=15)
@given(drawn(), st.integers(1, 30))
def test_the_cut_into_micro_batches_does_not_matter(batch: Drawn, micro_batch_tokens: int) -> None:
    everyone = list(range(len(batch.rollout)))
    parts = _cut(batch, everyone, micro_batch_tokens)
    fewer = _cut(batch, everyone, micro_batch_tokens, drop_zero_advantage=True)
    for name, objective in objectives():
        assert_same(_summed(batch, parts, objective), batch.result(objective), name)
        if objective.zero_advantage_means_zero_gradient:
            assert_same(_summed(batch, fewer, objective), batch.result(objective), f"{name}, rows dropped")


@settings(max_examples=15)
@given(drawn(min_rows=2), st.integers(1, 4), st.integers(1, 30))
def test_the_number_of_ranks_does_not_matter(batch: Drawn, first: int, micro_batch_tokens: int) -> None:
    everyone = list(range(len(batch.rollout)))
    first = min(first, len(everyone) - 1)
    mask = batch.rollout.completion_mask
    totals = torch.tensor([mask.sum(), len(mask)], dtype=torch.float64)
    # Each rank has its own rows; both see the totals of all. DDP and FSDP average what the ranks computed.
    ranks = mock.Mock(world_size=lambda: 2, all_sum=lambda _: totals, all_max=lambda most: most)
    with mock.patch.object(windows, "ranks", ranks):
        shares = [_cut(batch, rows, micro_batch_tokens) for rows in (everyone[:first], everyone[first:])]
    for name, objective in objectives():
        results = [_summed(batch, parts, objective) for parts in shares]
        averaged = tuple(sum(pair) / 2 for pair in zip(*results, strict=True))
        assert_same(averaged, batch.result(objective), name)


@settings(max_examples=25)
@given(drawn(on_policy=True, per_token=False))
def test_is_the_policy_gradient_where_the_ratio_is_one(batch: Drawn) -> None:
    """-A ∇log π of each token, weighted, for every objective: the clip, the gates and the weights are 1 there."""
    mask = batch.rollout.completion_mask
    weights = batch.reduction(mask, tokens=float(mask.sum()), sequences=float(len(mask)), max_length=cases.LONGEST)
    for name, case in cases.UNDER_TEST.items():
        factor = mask.sum(dim=1, keepdim=True) if case.times_length else 1.0
        _, gradient = batch.result(case.make())
        torch.testing.assert_close(
            gradient, -batch.rollout.advantages * weights * factor, rtol=1e-9, atol=1e-12, msg=name
        )


@settings(max_examples=15)
@given(drawn(on_policy=True, per_token=True))
def test_token_advantages_where_the_ratio_is_one(batch: Drawn) -> None:
    """Objectives with a ratio per token keep each token's advantage; those with one ratio per sequence spread the
    sequence's mean advantage evenly."""
    mask = batch.rollout.completion_mask
    weights = batch.reduction(mask, tokens=float(mask.sum()), sequences=float(len(mask)), max_length=cases.LONGEST)
    counts = mask.sum(dim=1, keepdim=True)
    mean = (batch.rollout.advantages * mask).sum(dim=1, keepdim=True) / counts.clamp(min=1)
    for name, case in cases.UNDER_TEST.items():
        credit = mean if case.one_ratio else batch.rollout.advantages
        factor = counts if case.times_length else 1.0
        _, gradient = batch.result(case.make())
        torch.testing.assert_close(gradient, -credit * weights * factor, rtol=1e-9, atol=1e-12, msg=name)


# --- the KL term: exact expectations over a small vocabulary, one row for each token that could be drawn -------------


def distributions(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of the policy, log-probabilities of the policy that sampled and of the reference, float64, ``[7]``."""
    generator = torch.Generator().manual_seed(seed)
    policy, sampler, reference = 1.5 * torch.randn(3, 7, dtype=torch.float64, generator=generator)
    return policy.requires_grad_(), sampler.log_softmax(0), reference.log_softmax(0)


def _gradient_of_the_term(policy: Tensor, old: Tensor | None, ref: Tensor, **options: bool | str) -> Tensor:
    """Of the KL term in the loss, averaged over what the sampling policy (None: the policy itself) may draw."""
    logprobs = policy.log_softmax(0)[:, None]
    zero = torch.zeros_like(logprobs)
    old = None if old is None else old[:, None]
    _, rollout = cases.batch(logprobs, mask=zero + 1, advantages=zero, old=old, ref=ref[:, None])
    penalty = ClippedObjective(beta=1.0, **options).token_loss(logprobs, rollout).penalty
    frequencies = (logprobs.detach() if old is None else old).exp()
    return torch.autograd.grad((frequencies * penalty).sum(), policy)[0]


def _reverse_kl(policy: Tensor, ref: Tensor) -> Tensor:
    logprobs = policy.log_softmax(0)
    return torch.autograd.grad((logprobs.exp() * (logprobs - ref)).sum(), policy)[0]


def _forward_kl(policy: Tensor, ref: Tensor) -> Tensor:
    return torch.autograd.grad((ref.exp() * (ref - policy.log_softmax(0))).sum(), policy)[0]


@settings(max_examples=25)
@given(st.integers(0, 10_000))
def test_on_policy_gradients_of_the_kl_term(seed: int) -> None:
    policy, _, ref = distributions(seed)
    reverse, nothing = _reverse_kl(policy, ref), torch.zeros(7, dtype=torch.float64)
    plain = {"k1": nothing, "k2": reverse, "k3": _forward_kl(policy, ref)}
    for estimator, expected in plain.items():
        for ratio, gradient in ((False, expected), (True, reverse)):
            found = _gradient_of_the_term(policy, None, ref, kl_estimator=estimator, kl_ratio=ratio)
            torch.testing.assert_close(found, gradient, rtol=0, atol=1e-10, msg=f"{estimator}, ratio {ratio}")


@settings(max_examples=25)
@given(st.integers(0, 10_000))
def test_times_the_ratio_the_kl_term_is_exact_off_policy_too(seed: int) -> None:
    policy, old, ref = distributions(seed)
    for estimator in ("k1", "k2", "k3"):
        found = _gradient_of_the_term(policy, old, ref, kl_estimator=estimator, kl_ratio=True)
        torch.testing.assert_close(found, _reverse_kl(policy, ref), rtol=0, atol=1e-10, msg=estimator)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_off_policy_without_the_ratio_the_kl_term_is_another(estimator: str) -> None:
    policy, old, ref = distributions(0)
    found = _gradient_of_the_term(policy, old, ref, kl_estimator=estimator, kl_ratio=False)
    assert (found - _reverse_kl(policy, ref)).abs().max() > 0.05


@settings(max_examples=15)
@given(drawn(), st.sampled_from(["k1", "k2", "k3"]), st.booleans())
def test_the_kl_term_is_the_same_beside_every_objective(batch: Drawn, estimator: str, ratio: bool) -> None:
    penalties = {
        name: case.make(beta=0.3, kl_estimator=estimator, kl_ratio=ratio)
        .token_loss(batch.logprobs, batch.rollout)
        .penalty
        for name, case in cases.UNDER_TEST.items()
    }
    for name, penalty in penalties.items():
        torch.testing.assert_close(penalty, penalties["reinforce"], rtol=0, atol=0, msg=name)
