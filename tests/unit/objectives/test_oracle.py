"""Every objective x reduction x KL form against formulas written independently, and that no mutated formula passes.

``oracle.py`` holds the formulas, ``cases.py`` the fixed batch. Loss and gradient must agree to 1e-9 in float64 and to
1e-5 in float32. ``MUTATIONS`` lists single edits of the formulas (a sign, a bound, a denominator, a stop-gradient);
each must be seen at the float32 tolerance, hence at the float64 one.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor

from grpo_lightning.functional import reduction as reductions
from grpo_lightning.types import RolloutBatch
from tests.unit.objectives import cases, mutations, oracle
from tests.unit.objectives.cases import UNDER_TEST
from tests.unit.objectives.mutations import Mutation

TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-5}
REDUCTIONS = ["token_mean", "sequence_mean", "sequence_sum", "constant_length"]
BETA = 0.3
KL_FORMS: dict[str, dict[str, Any]] = {
    "none": {},
    **{
        f"{estimator}{' x ratio' if ratio else ''}": {"beta": BETA, "kl_estimator": estimator, "kl_ratio": ratio}
        for estimator in ("k1", "k2", "k3")
        for ratio in (False, True)
    },
}


@cache
def _formula(name: str, module: Any) -> oracle.Policy:
    """An objective's formula; most rows are asked for again and again while one token after another is nudged."""
    case = UNDER_TEST[name]
    return cache(partial(getattr(module, case.formula), **case.formula_settings))


@cache
def _penalty(kl_form: str, module: Any) -> oracle.Policy:
    options = KL_FORMS[kl_form]
    return cache(partial(module.kl, estimator=options["kl_estimator"], times_ratio=options["kl_ratio"]))


@cache
def _batch(dtype: torch.dtype, per_token: bool) -> tuple[Tensor, RolloutBatch]:
    return cases.fixed_batch(dtype, per_token=per_token)


def _expected(name: str, reduction: str, kl_form: str, per_token: bool, module: Any = oracle) -> tuple[float, Tensor]:
    """Loss and gradient by ``module``, the oracle or a mutant of it."""
    logprobs, rollout = _batch(torch.float64, per_token)
    of = partial(
        module.loss,
        policy=_formula(name, module),
        reduction=getattr(module, reduction),
        longest=cases.LONGEST,
        beta=BETA,
        penalty=_penalty(kl_form, module) if KL_FORMS[kl_form] else None,
    )
    rows = cases.rows_of(logprobs, rollout)
    return of(rows).real, cases.spread(module.gradient(rows, of), rollout.completion_mask)


def _disagreement(
    name: str, reduction: str, kl_form: str, per_token: bool, dtype: torch.dtype, expected: tuple[float, Tensor]
) -> float:
    """Largest difference of loss and gradient between the package and ``expected``."""
    objective = UNDER_TEST[name].make(**KL_FORMS[kl_form])
    loss, gradient = cases.reduced(objective, *_batch(dtype, per_token), getattr(reductions, reduction))
    assert loss.dtype == gradient.dtype == dtype
    return max(abs(loss.item() - expected[0]), (gradient.double() - expected[1]).abs().max().item())


@pytest.mark.parametrize("kl_form", KL_FORMS)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", UNDER_TEST)
def test_loss_and_gradient(name: str, reduction: str, kl_form: str) -> None:
    for per_token in (False, True):
        expected = _expected(name, reduction, kl_form, per_token)
        for dtype, tolerance in TOLERANCES.items():
            found = _disagreement(name, reduction, kl_form, per_token, dtype, expected)
            assert found < tolerance, f"advantages per {'token' if per_token else 'sequence'}, {dtype}"


@pytest.mark.parametrize(("says", "instead"), [("", ""), ("len(row) * x", "x"), ("len(row) * x", "-len(row) * x")])
def test_luspo_with_sums_is_the_mean_of_its_paper(says: str, instead: str) -> None:
    """The length that the paper multiplies GSPO by is our choice of the reduction."""
    module = Mutation("luspo", "luspo", says, instead).applied() if says else oracle
    logprobs, rollout = _batch(torch.float64, False)
    rows = cases.rows_of(logprobs, rollout)
    policy = partial(module.luspo, **UNDER_TEST["luspo"].formula_settings)
    of = partial(module.loss, policy=policy, reduction=module.sequence_mean, longest=cases.LONGEST)
    loss, gradient = cases.reduced(UNDER_TEST["luspo"].make(), logprobs, rollout, reductions.sequence_sum)
    expected = cases.spread(module.gradient(rows, of), rollout.completion_mask)
    agree = abs(loss.item() - of(rows).real) < 1e-9 and (gradient - expected).abs().max().item() < 1e-9
    assert agree == (module is oracle)


# --- the tolerance bites: no mutated formula passes -----------------------------------------------------------------


@pytest.mark.parametrize("mutation", mutations.MUTATIONS, ids=str)
def test_a_mutated_formula_is_seen(mutation: Mutation) -> None:
    mutant = mutation.applied()
    where = (mutation.case, mutation.reduction, mutation.kl_form)
    found = max(
        _disagreement(*where, per_token, torch.float32, _expected(*where, per_token, mutant))
        for per_token in (False, True)
    )
    assert found > 100 * TOLERANCES[torch.float32]


def test_every_formula_is_mutated() -> None:
    mutated = {(m.case, m.function) for m in mutations.MUTATIONS}
    assert {name for name, _ in mutated} == set(UNDER_TEST)
    functions = {function for _, function in mutated}
    assert {case.formula for case in UNDER_TEST.values()} | set(REDUCTIONS) | {"kl", "loss"} <= functions
