"""The clipped objective: losses and gradients by hand, the KL term, the metrics, and proof that the checks can fail."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from grpo_lightning.errors import UserError
from grpo_lightning.objectives import ClippedObjective
from grpo_lightning.types import RolloutBatch

LOW, HIGH = 0.2, 0.28


def _rollout(
    advantages: Tensor, *, old: Tensor | None = None, ref: Tensor | None = None, tokens: int = 1
) -> RolloutBatch:
    rows = len(advantages)
    return RolloutBatch(
        input_ids=torch.zeros(rows, tokens + 1, dtype=torch.long),
        sequence_lengths=torch.full((rows,), tokens + 1),
        prompt_lengths=torch.ones(rows, dtype=torch.long),
        completion_mask=torch.ones(rows, tokens),
        advantages=advantages,
        old_logprobs=old,
        ref_logprobs=ref,
    )


# (ratio, advantage) -> loss, gradient with respect to log-probability (-ratio * A where it is not clipped, else 0)
BY_HAND = [
    # below the range
    (0.5, 2.0, -1.0, -1.0),  # a good token that became unlikely still pulls back
    (0.5, -2.0, 1.6, 0.0),  # a bad token below 0.8 is done: 2 * 0.8
    # inside
    (0.9, 2.0, -1.8, -1.8),
    (0.9, -2.0, 1.8, 1.8),
    (1.0, 1.0, -1.0, -1.0),
    (1.0, -1.0, 1.0, 1.0),
    # between 1.2 and 1.28: inside only because the upper range is the wider one
    (1.25, 2.0, -2.5, -2.5),
    # above
    (1.5, 2.0, -2.56, 0.0),  # a good token above 1.28 is done: 2 * 1.28
    (1.5, -2.0, 3.0, 3.0),  # a bad token that became likely keeps its full push
    (1.5, 0.0, 0.0, 0.0),
]


@pytest.mark.parametrize(("ratio", "advantage", "loss", "gradient"), BY_HAND)
def test_loss_and_gradient_by_hand(ratio: float, advantage: float, loss: float, gradient: float) -> None:
    logprobs = torch.tensor([[math.log(ratio) - 3]], dtype=torch.float64, requires_grad=True)
    old = torch.full((1, 1), -3.0, dtype=torch.float64)
    values = ClippedObjective().token_loss(logprobs, _rollout(torch.tensor([[advantage]]), old=old)).values
    values.sum().backward()
    assert values.item() == pytest.approx(loss, abs=1e-9)
    assert logprobs.grad.item() == pytest.approx(gradient, abs=1e-9)


@pytest.mark.parametrize("advantage", [1.5, -0.5])
def test_on_policy_the_loss_is_minus_the_advantage_and_the_gradient_too(advantage: float) -> None:
    logprobs = torch.tensor([[-2.0, -0.1]], requires_grad=True)
    result = ClippedObjective().token_loss(logprobs, _rollout(torch.tensor([[advantage]]), tokens=2))
    result.values.sum().backward()
    assert result.values.tolist() == [[-advantage, -advantage]]
    assert logprobs.grad.tolist() == [[-advantage, -advantage]]
    assert result.metrics["ratio"].tolist() == [[1.0, 1.0]]


def test_a_group_that_averages_to_zero_has_zero_loss_but_a_gradient() -> None:
    logprobs = torch.tensor([[-1.0], [-2.0]], requires_grad=True)
    values = ClippedObjective().token_loss(logprobs, _rollout(torch.tensor([[0.7071], [-0.7071]]))).values
    values.sum().backward()
    assert values.sum().item() == 0.0
    assert logprobs.grad.flatten().tolist() == pytest.approx([-0.7071, 0.7071])


def test_advantages_may_differ_from_token_to_token() -> None:
    logprobs = torch.zeros(1, 3, requires_grad=True)
    values = ClippedObjective().token_loss(logprobs, _rollout(torch.tensor([[1.0, -2.0, 0.0]]), tokens=3)).values
    assert values.tolist() == [[-1.0, 2.0, 0.0]]


# --- an independent formula, and mutations of it that the same check must reject ----------------------------------


def _formula(logprob: float, old: float, ref: float, advantage: float, *, beta: float) -> float:
    """One token's loss, written as the cases of the paper's figure instead of as a minimum; k3 times the ratio."""
    ratio = math.exp(logprob - old)
    if advantage >= 0:
        surrogate = advantage * (ratio if ratio < 1 + HIGH else 1 + HIGH)
    else:
        surrogate = advantage * (ratio if ratio > 1 - LOW else 1 - LOW)
    gap = ref - logprob
    return -surrogate + beta * (math.exp(gap) - gap - 1) * ratio


Loss = Callable[..., float]
GRID = [
    (logprob, old, ref, advantage)
    for logprob in (-0.3, -1.0, -1.1, -2.5)
    for old in (-0.4, -1.0, -1.26)
    for ref in (-0.2, -1.05, -3.0)
    for advantage in (-1.3, -0.2, 0.0, 0.4, 1.7)
]


def _differs(loss: Loss, *, beta: float) -> float:
    """Largest difference to ``ClippedObjective`` over tokens below, inside and above the range, in float64."""
    columns = torch.tensor(GRID, dtype=torch.float64).T[..., None]
    logprobs, old, ref, advantages = columns
    result = ClippedObjective(beta=beta).token_loss(logprobs, _rollout(advantages, old=old, ref=ref))
    ours = (result.values if result.penalty is None else result.values + result.penalty).flatten()
    other = torch.tensor([loss(*token, beta=beta) for token in GRID], dtype=torch.float64)
    return float((ours - other).abs().max())


@pytest.mark.parametrize("beta", [0.0, 0.04, 1.0])
def test_equals_the_formula_everywhere(beta: float) -> None:
    assert _differs(_formula, beta=beta) < 1e-12


def _plain(surrogate: Callable[[float, float], float], divergence: Callable[[float, float], float]) -> Loss:
    """A loss of the usual shape from its two parts, each a function of the ratio and one more number."""

    def loss(logprob: float, old: float, ref: float, advantage: float, *, beta: float) -> float:
        ratio = math.exp(logprob - old)
        return -surrogate(ratio, advantage) + beta * divergence(ratio, ref - logprob)

    return loss


def _clamp(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def _good_surrogate(ratio: float, advantage: float) -> float:
    return min(ratio * advantage, _clamp(ratio, 1 - LOW, 1 + HIGH) * advantage)


def _good_divergence(ratio: float, gap: float) -> float:
    return (math.exp(gap) - gap - 1) * ratio


MUTATIONS: dict[str, Loss] = {
    "sign flipped": _plain(lambda r, a: -_good_surrogate(r, a), _good_divergence),
    "maximum instead of minimum": _plain(lambda r, a: max(r * a, _clamp(r, 1 - LOW, 1 + HIGH) * a), _good_divergence),
    "bounds swapped": _plain(lambda r, a: min(r * a, _clamp(r, 1 - HIGH, 1 + LOW) * a), _good_divergence),
    "one range for both sides": _plain(lambda r, a: min(r * a, _clamp(r, 1 - LOW, 1 + LOW) * a), _good_divergence),
    "always clipped": _plain(lambda r, a: _clamp(r, 1 - LOW, 1 + HIGH) * a, _good_divergence),
    "never clipped": _plain(lambda r, a: r * a, _good_divergence),
    "ratio upside down": _plain(lambda r, a: _good_surrogate(1 / r, a), _good_divergence),
    "ratio without its exponential": _plain(lambda r, a: _good_surrogate(1 + math.log(r), a), _good_divergence),
    "KL sign": _plain(_good_surrogate, lambda r, gap: -_good_divergence(r, gap)),
    "KL the other way round": _plain(_good_surrogate, lambda r, gap: _good_divergence(r, -gap)),
    "KL without the ratio": _plain(_good_surrogate, lambda r, gap: math.exp(gap) - gap - 1),
    "KL by k2": _plain(_good_surrogate, lambda r, gap: gap * gap / 2 * r),
    "KL by k1": _plain(_good_surrogate, lambda r, gap: -gap * r),
}


def test_the_unmutated_parts_pass() -> None:
    assert _differs(_plain(_good_surrogate, _good_divergence), beta=0.5) < 1e-12


@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS.keys())
def test_a_mutated_formula_is_told_apart(mutation: Loss) -> None:
    assert _differs(mutation, beta=0.5) > 1e-3


# --- metrics, settings --------------------------------------------------------------------------------------------


def test_clip_shares_count_the_tokens_whose_gradient_is_cut() -> None:
    ratios = torch.tensor([[0.5, 0.5, 1.0, 1.25, 1.5, 1.5, 1.5]])
    advantages = torch.tensor([[1.0, -1.0, 1.0, 1.0, 1.0, -1.0, 0.0]])
    rollout = _rollout(advantages, old=torch.zeros(1, 7), tokens=7)
    _, metrics, shares, *_ = ClippedObjective().token_loss(ratios.log(), rollout)
    assert shares is not None
    assert shares["clip_ratio/low_mean"].tolist() == [[0, 1, 0, 0, 0, 0, 0]]
    assert shares["clip_ratio/high_mean"].tolist() == [[0, 0, 0, 0, 1, 0, 0]]
    assert shares["clip_ratio/region_mean"].tolist() == [[0, 1, 0, 0, 1, 0, 0]]
    assert metrics["ratio"].tolist() == [pytest.approx(ratios[0].tolist())]
    assert "kl" not in metrics


def test_a_dual_clip_bounds_what_a_bad_token_counts_and_says_so() -> None:
    # ratio, advantage -> loss, gradient: only a bad token above delta changes
    cases = [(2.0, -2.0, 4.0, 4.0), (5.0, -2.0, 6.0, 0.0), (5.0, 2.0, -2.56, 0.0), (0.5, -2.0, 1.6, 0.0)]
    logprobs = torch.tensor([[math.log(ratio) for ratio, *_ in cases]], dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([[advantage for _, advantage, *_ in cases]], dtype=torch.float64)
    rollout = _rollout(advantages, old=torch.zeros(1, 4, dtype=torch.float64), tokens=4)
    result = ClippedObjective(delta=3.0).token_loss(logprobs, rollout)
    result.values.sum().backward()
    assert result.values.tolist() == [pytest.approx([loss for *_, loss, _ in cases], abs=1e-9)]
    assert logprobs.grad.tolist() == [pytest.approx([gradient for *_, gradient in cases], abs=1e-9)]
    assert result.shares is not None
    assert result.shares["clip_ratio/delta_mean"].tolist() == [[0, 1, 0, 0]]


def test_a_range_of_ten_clips_only_above() -> None:
    logprobs = torch.tensor([[-12.0, math.log(12.0), math.log(12.0)]], requires_grad=True)
    rollout = _rollout(torch.tensor([[-1.0, 1.0, -1.0]]), old=torch.zeros(1, 3), tokens=3)
    result = ClippedObjective(epsilon=10.0, epsilon_high=10.0).token_loss(logprobs, rollout)
    assert result.values.flatten().tolist() == pytest.approx([math.exp(-12), -11.0, 12.0], rel=1e-5)
    assert result.shares is not None
    assert result.shares["clip_ratio/region_mean"].tolist() == [[0, 1, 0]]


def test_metrics_hold_no_graph_and_one_figure_per_token() -> None:
    logprobs = torch.randn(2, 3, requires_grad=True)
    rollout = _rollout(torch.ones(2, 1), ref=torch.zeros(2, 3), tokens=3)
    for figure in ClippedObjective(beta=1.0).token_loss(logprobs, rollout).metrics.values():
        assert figure.shape == (2, 3)
        assert not figure.requires_grad


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"epsilon": 0.0}, "epsilon 0.0"),
        ({"epsilon": math.nan}, "epsilon nan"),
        ({"epsilon_high": 0.0}, "epsilon_high 0.0"),
        ({"epsilon_high": math.inf}, "epsilon_high inf"),
        ({"delta": 1.28}, "delta 1.28"),
    ],
)
def test_wrong_settings_are_refused_by_name(options: dict[str, float], flag: str) -> None:
    with pytest.raises(UserError, match=f"--model.objective.{flag}"):
        ClippedObjective(**options)
