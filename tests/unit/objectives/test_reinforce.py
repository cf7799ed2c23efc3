"""REINFORCE by hand; every other objective has its gradient on policy."""

from __future__ import annotations

import pytest

from grpo_lightning.objectives import CISPO, SAPO, VESPO, ClippedObjective, Reinforce
from tests.unit.objectives.rollouts import numbers, rollout


def test_by_hand_whatever_the_old_policy_was() -> None:
    logprobs = numbers([[-1.0, -2.0]], grad=True)
    result = Reinforce().token_loss(logprobs, rollout([[3.0, -0.5]], tokens=2, old=[[-9.0, 0.0]]))
    assert result.values.tolist() == [[3.0, -1.0]]
    result.values.sum().backward()
    assert logprobs.grad.tolist() == [[-3.0, 0.5]]


@pytest.mark.parametrize("other", [ClippedObjective, CISPO, SAPO, VESPO])
def test_on_policy_the_objectives_by_token_have_its_gradient(other: type) -> None:
    gradients = []
    for objective in (Reinforce(), other()):
        logprobs = numbers([[-1.0, -2.0], [-0.1, -3.0]], grad=True)
        objective.token_loss(logprobs, rollout([[0.8], [-1.2]], tokens=2)).values.sum().backward()
        gradients.append(logprobs.grad.flatten().tolist())
    assert gradients[1] == pytest.approx(gradients[0], abs=1e-15)
