"""The KL term that all objectives share: by hand, exact gradients, in the loss or the reward; and what is masked."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from grpo_lightning.errors import UserError
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
    TokenLoss,
)
from grpo_lightning.types import RolloutBatch
from tests.unit.objectives.rollouts import numbers, rollout

FAMILY = [ClippedObjective, GSPO, LUSPO, RLOO, CISPO, SAPO, GMPO, VESPO, Reinforce]


@pytest.mark.parametrize(
    ("estimator", "times_ratio", "value", "gradient"),
    [
        # log-prob -1 on policy, reference -2: gap d = -1; dk/dlogprob by hand, plus k where the ratio multiplies it
        ("k1", False, 1.0, 1.0),
        ("k1", True, 1.0, 1.0 + 1.0),
        ("k2", False, 0.5, 1.0),
        ("k2", True, 0.5, 1.0),  # k2's ratio is held constant
        ("k3", False, 0.367879, 1 - 0.367879),  # 1 - e^d
        ("k3", True, 0.367879, 1 - 0.367879 + 0.367879),
    ],
)
def test_the_term_by_hand(estimator: str, times_ratio: bool, value: float, gradient: float) -> None:
    objective = ClippedObjective(beta=0.1, kl_estimator=estimator, kl_ratio=times_ratio)
    logprobs = numbers([[-1.0]], grad=True)
    result = objective.token_loss(logprobs, rollout([[0.0]], ref=[[-2.0]]))
    result.penalty.sum().backward()
    assert result.values.item() == 0.0
    assert result.penalty.item() == pytest.approx(0.1 * value, abs=1e-6)
    assert logprobs.grad.item() == pytest.approx(0.1 * gradient, abs=1e-6)
    assert result.metrics["kl"].item() == pytest.approx(value, abs=1e-6)
    assert result.sequence_sums["kl_sequence"].item() == pytest.approx(value, abs=1e-6)


def test_off_policy_the_logged_figure_is_the_estimate_without_the_ratio() -> None:
    batch = rollout([[0.0]], old=[[-1.5]], ref=[[-2.0]])
    result = ClippedObjective(beta=1.0).token_loss(numbers([[-1.0]]), batch)
    assert result.metrics["kl"].item() == pytest.approx(0.367879, abs=1e-6)
    assert result.penalty.item() == pytest.approx(0.367879 * math.exp(0.5), abs=1e-6)


@pytest.mark.parametrize("objective", [GSPO, LUSPO, RLOO, GMPO])
def test_the_ratio_is_the_tokens_own_where_the_objective_has_one_for_the_sequence(objective: type) -> None:
    batch = rollout([[0.0]], tokens=2, old=[[-1.5, -1.0]], ref=[[-2.0, -1.0]])
    result = objective(beta=1.0).token_loss(numbers([[-1.0, -1.0]]), batch)
    assert result.penalty.tolist() == [[pytest.approx(0.367879 * math.exp(0.5), abs=1e-6), 0.0]]


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("times_ratio", [False, True])
def test_is_exactly_zero_while_the_policy_is_the_reference(estimator: str, times_ratio: bool) -> None:
    objective = ClippedObjective(beta=0.04, kl_estimator=estimator, kl_ratio=times_ratio)
    logprobs = -torch.rand(3, 4) * 8
    result = objective.token_loss(logprobs, rollout([[0.0]] * 3, tokens=4, ref=logprobs.tolist()))
    assert result.metrics["kl"].abs().max().item() == 0.0
    assert result.penalty.abs().max().item() == 0.0


@pytest.mark.parametrize("gap", [100.0, -100.0])
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_a_reference_far_away_keeps_loss_and_gradient_finite(estimator: str, gap: float) -> None:
    logprobs = torch.tensor([[-1.0]], requires_grad=True)
    batch = rollout([[1.0]], ref=[[-1.0 + gap]])
    batch.ref_logprobs = batch.ref_logprobs.float()
    result = ClippedObjective(beta=0.04, kl_estimator=estimator).token_loss(logprobs, batch)
    result.penalty.sum().backward()
    assert math.isfinite(result.penalty.item())
    assert math.isfinite(logprobs.grad.item())


# --- exact gradients: one row for each token of a small vocabulary, weighted by its probability -------------------

LOGITS, REFERENCE = numbers([0.3, -1.0, 2.0, 0.0, 0.9]), numbers([1.0, 0.2, 0.5, -0.7, 0.1]).log_softmax(0)


def gradient(loss: Callable[[Tensor], Tensor]) -> Tensor:
    """Of a loss of the five log-probabilities, with respect to the logits."""
    logits = LOGITS.clone().requires_grad_()
    loss(logits.log_softmax(0)).backward()
    return logits.grad


def expected_over_samples(objective: RegularizedObjective, advantages: Tensor) -> Tensor:
    """Gradient of the whole loss, averaged over every token that could have been sampled."""

    def loss(logprobs: Tensor) -> Tensor:
        batch = rollout(advantages[:, None].tolist(), ref=REFERENCE[:, None].tolist())
        result = objective.token_loss(logprobs[:, None], batch)
        total = result.values if result.penalty is None else result.values + result.penalty
        return (logprobs.detach().exp() * total.squeeze(1)).sum()

    return gradient(loss)


REVERSE = gradient(lambda logprobs: (logprobs.exp() * (logprobs - REFERENCE)).sum())
FORWARD = gradient(lambda logprobs: (REFERENCE.exp() * (REFERENCE - logprobs)).sum())


@pytest.mark.parametrize(
    ("estimator", "times_ratio", "expected"),
    [
        ("k3", True, REVERSE),
        ("k3", False, FORWARD),
        ("k2", True, REVERSE),
        ("k2", False, REVERSE),
        ("k1", True, REVERSE),
        ("k1", False, torch.zeros(5).double()),
    ],
)
def test_gradient_of_the_term_in_the_loss(estimator: str, times_ratio: bool, expected: Tensor) -> None:
    assert (REVERSE - FORWARD).abs().max() > 0.05
    objective = Reinforce(beta=0.5, kl_estimator=estimator, kl_ratio=times_ratio)
    assert torch.allclose(expected_over_samples(objective, torch.zeros(5)), 0.5 * expected, atol=1e-12)


@pytest.mark.parametrize(("estimator", "expected"), [("k1", REVERSE), ("k3", REVERSE - FORWARD)])
def test_gradient_of_the_term_in_the_reward(estimator: str, expected: Tensor) -> None:
    objective = Reinforce(beta=0.5, kl_estimator=estimator, kl_in="reward")
    penalty = objective.reward_penalty(LOGITS.log_softmax(0), REFERENCE)
    assert torch.allclose(expected_over_samples(objective, -penalty), 0.5 * expected, atol=1e-12)


def test_close_to_the_reference_only_k1_in_the_reward_pulls_back() -> None:
    pulls = {}
    near = REFERENCE + 0.01 * numbers([1.0, -1.0, 0.0, 2.0, -0.5])
    for estimator in ("k1", "k2", "k3"):
        logits = near.clone().requires_grad_()
        logprobs = logits.log_softmax(0)
        penalty = Reinforce(beta=1.0, kl_estimator=estimator, kl_in="reward").reward_penalty(logprobs, REFERENCE)
        (logprobs.detach().exp() * penalty * logprobs).sum().backward()
        pulls[estimator] = logits.grad.norm().item()
    assert pulls["k2"] < 0.02 * pulls["k1"]
    assert pulls["k3"] < 0.02 * pulls["k1"]


# --- in the reward ------------------------------------------------------------------------------------------------


def test_in_the_reward_there_is_no_penalty_in_the_loss_but_its_figures_are_logged() -> None:
    objective = ClippedObjective(beta=0.1, kl_estimator="k1", kl_in="reward")
    result = objective.token_loss(numbers([[-1.0, -1.0]]), rollout([[1.0]], tokens=2, ref=[[-2.0, -1.5]]))
    assert result.penalty is None
    assert result.metrics["kl"].tolist() == [[1.0, 0.5]]
    assert result.sequence_sums["kl_sequence"].tolist() == [[1.0, 0.5]]
    penalty = objective.reward_penalty(numbers([[-1.0, -1.0]], grad=True), numbers([[-2.0, -0.5]]))
    assert penalty.tolist() == [[pytest.approx(0.1), pytest.approx(-0.05)]]
    assert not penalty.requires_grad


@pytest.mark.parametrize("family", FAMILY)
def test_what_beta_decides_follows_it(family: type[RegularizedObjective]) -> None:
    for options, needs, penalizes, drops in (
        ({}, False, False, True),
        ({"beta": 0.1}, True, False, False),
        ({"kl_in": "reward"}, False, False, True),
        ({"beta": 0.1, "kl_in": "reward"}, True, True, True),
    ):
        objective = family(**options)
        found = objective.needs_reference, objective.penalizes_reward, objective.zero_advantage_means_zero_gradient
        assert found == (needs, penalizes, drops), options
    objective = family(beta=0.1)
    batch = rollout([[0.0]], ref=[[-2.0]])
    before = objective.token_loss(numbers([[-1.0]]), batch).penalty
    objective.beta = 0.2  # as an adaptive coefficient does
    assert objective.token_loss(numbers([[-1.0]]), batch).penalty.item() == 2 * before.item()
    objective.beta = 0.0
    assert not objective.needs_reference
    assert objective.token_loss(numbers([[-1.0]]), batch).penalty is None


@pytest.mark.parametrize("family", FAMILY)
def test_no_advantage_no_gradient(family: type[RegularizedObjective]) -> None:
    logprobs = numbers([[-1.0, -2.0], [-0.5, -3.0]], grad=True)
    batch = rollout([[0.0], [0.0]], tokens=2, old=[[-1.5, -1.0], [-9.0, -3.0]])
    family().token_loss(logprobs, batch).values.sum().backward()
    assert logprobs.grad.tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_an_objective_of_ones_own_has_no_penalty_unless_it_says_so() -> None:
    class Own(Objective):
        def token_loss(self, logprobs: Tensor, rollout: RolloutBatch) -> TokenLoss:
            return TokenLoss(-rollout.advantages * logprobs, {})

    assert not Own().penalizes_reward
    assert not Own().corrects_sampler
    with pytest.raises(NotImplementedError, match="Own penalizes rewards"):
        Own().reward_penalty(numbers([[0.0]]), numbers([[0.0]]))


# --- masks and numbers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILY)
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 1e38])
def test_what_is_masked_reaches_neither_value_nor_gradient(family: type[RegularizedObjective], poison: float) -> None:
    def run(filling: float) -> tuple[list[Any], list[float]]:
        logprobs = numbers([[-1.0, -2.0, filling], [filling] * 3], grad=True)
        batch = rollout(
            [[0.7, 0.7, filling], [filling] * 3],
            tokens=3,
            old=[[-1.1, -1.8, filling], [filling] * 3],
            ref=[[-1.5, -1.0, filling], [filling] * 3],
            sampling=[[-1.1, -1.7, filling], [filling] * 3],
            mask=[[1.0, 1.0, 0.0], [0.0] * 3],
        )
        result = family(beta=0.1).token_loss(logprobs, batch)
        figures = [result.values, result.penalty, *result.metrics.values(), *(result.shares or {}).values()]
        (result.values + result.penalty).sum().backward()
        return [figure[0, :2].tolist() for figure in figures], logprobs.grad.flatten().tolist()

    clean, poisoned = run(0.0), run(poison)
    assert poisoned == clean
    assert poisoned[1][:2] != [0.0, 0.0]
    assert poisoned[1][2:] == [0.0] * 4


def test_a_policy_term_is_given_zeros_wherever_nothing_is_trained() -> None:
    class Own(RegularizedObjective):
        def policy_loss(self, logprobs: Tensor, rollout: RolloutBatch) -> TokenLoss:
            given = [getattr(rollout, name) for name in ("old_logprobs", "ref_logprobs", "sampling_logprobs")]
            assert all(figure.tolist() == [[-1.0, 0.0]] for figure in (logprobs, *given))
            assert rollout.advantages.tolist() == [[2.0, 0.0]]  # spread over tokens
            return TokenLoss(-rollout.advantages * logprobs, {})

    bad = [[-1.0, math.nan]]
    batch = rollout([[2.0]], tokens=2, old=bad, ref=bad, sampling=bad, mask=[[1.0, 0.0]])
    result = Own(beta=0.1).token_loss(numbers(bad), batch)
    assert result.values.tolist() == [[2.0, 0.0]]
    assert result.penalty.tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("family", FAMILY)
@pytest.mark.parametrize("gap", [300.0, -300.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_policies_far_apart_keep_value_and_gradient_finite_in_float32(
    family: type[RegularizedObjective], gap: float, advantage: float
) -> None:
    logprobs = torch.full((1, 40), -1.0, requires_grad=True)
    batch = rollout([[advantage]], tokens=40, old=[[-1.0 - gap] * 40])
    batch.advantages, batch.old_logprobs = batch.advantages.float(), batch.old_logprobs.float()
    result = family().token_loss(logprobs, batch)
    result.values.sum().backward()
    assert torch.isfinite(result.values).all()
    assert torch.isfinite(logprobs.grad).all()
    assert all(torch.isfinite(figure).all() for figure in result.metrics.values())


@pytest.mark.parametrize("family", FAMILY)
def test_only_tokens_of_high_entropy_get_a_gradient(family: type[RegularizedObjective]) -> None:
    logprobs = numbers([[-1.0, -2.0, -0.5]], grad=True)
    batch = rollout([[0.7]], tokens=3, ref=[[-1.5, -1.0, -1.0]])
    batch.entropy_mask = torch.tensor([[0.0, 1.0, 0.0]])
    result = family(beta=0.1).token_loss(logprobs, batch)
    result.values.sum().backward(retain_graph=True)
    assert [g != 0 for g in logprobs.grad[0].tolist()] == [False, True, False]
    logprobs.grad = None
    result.penalty.sum().backward()  # the KL term is not confined
    assert all(g != 0 for g in logprobs.grad[0].tolist())


@pytest.mark.parametrize("family", FAMILY)
def test_metrics_hold_no_graph_and_one_figure_per_token(family: type[RegularizedObjective]) -> None:
    result = family(beta=1.0).token_loss(
        numbers([[-1.0, -2.0, -3.0]] * 2, grad=True), rollout([[1.0], [-1.0]], tokens=3, ref=[[-1.0] * 3] * 2)
    )
    for figures in (result.metrics, result.shares or {}, result.sequence_sums):
        for name, figure in figures.items():
            assert figure.shape == (2, 3), name
            assert not figure.requires_grad, name


@pytest.mark.parametrize("family", FAMILY)
@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"beta": -0.1}, "beta -0.1"),
        ({"beta": math.nan}, "beta nan"),
        ({"kl_estimator": "k4"}, "kl_estimator k4"),
        ({"kl_in": "both"}, "kl_in both"),
    ],
)
def test_wrong_settings_are_refused_by_name(
    family: type[RegularizedObjective], options: dict[str, Any], flag: str
) -> None:
    with pytest.raises(UserError, match=f"^--model.objective.{flag}: ") as caught:
        family(**options)
    assert "\n" not in str(caught.value)
