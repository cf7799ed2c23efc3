"""How a module puts the policy's loss together, by hand, and which models it loads for what."""

from __future__ import annotations

import logging
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from grpo_lightning import GRPOModule
from grpo_lightning.functional.logprobs import TokenScores
from grpo_lightning.functional.reduction import sequence_mean
from grpo_lightning.objectives import GMPO, GSPO, LUSPO, RLOO, VESPO, ClippedObjective, Objective
from grpo_lightning.rollout.sampler_correction import SamplerCorrection
from grpo_lightning.token_means import TokenMeans
from grpo_lightning.types import RolloutBatch, Window
from tests.unit.models.tiny import saved_policy


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved_policy(tmp_path_factory.mktemp("policy"))


def step(policy: str, objective: Objective, **options: Any) -> tuple[list[float], dict[str, float]]:
    """Gradient by the log-probabilities, and figures, of a first step on one completion of two tokens, advantage 1.

    The trainer gives them 1.2 and 2.7 times the sampler's probabilities: 3.24 in all, 1.8 as a geometric mean.
    """
    module = GRPOModule(policy, objective=objective, **options)
    module._trainer = SimpleNamespace(world_size=1)  # type: ignore[assignment]
    logprobs, mask = torch.tensor([[-1.0, -2.0]], requires_grad=True), torch.ones(1, 2)
    batch = RolloutBatch(
        input_ids=torch.zeros(1, 3, dtype=torch.long),
        sequence_lengths=torch.tensor([3]),
        prompt_lengths=torch.tensor([1]),
        completion_mask=mask,
        loss_weights=sequence_mean(mask, tokens=2.0, sequences=1.0, max_length=2),
        advantages=torch.ones(1, 1),
        sampling_logprobs=torch.tensor([[-1.0 - math.log(1.2), -2.0 - math.log(2.7)]]),
    )
    figures = TokenMeans()
    scores, window = TokenScores(logprobs, torch.zeros(1, 2)), Window(micro_batches=[batch], tokens=2.0)
    module.policy_loss(scores, batch, window=window, figures=figures).backward()
    assert logprobs.grad is not None
    return logprobs.grad[0].tolist(), figures.result(all_tokens=2.0)


@pytest.mark.parametrize(
    ("objective", "uncorrected", "corrected"),
    [
        (ClippedObjective(), [-0.5, -0.5], [-0.5 * 1.2, -0.5 * 2.0]),
        (GSPO(token_gradient=True), [-0.5, -0.5], [-0.5 * 1.2, -0.5 * 2.0]),
        # By token it would be the mean of 1.2 and 2, for both.
        (GSPO(), [-0.5, -0.5], [-0.5 * 1.8] * 2),
        (LUSPO(), [-0.5, -0.5], [-0.5 * 1.8] * 2),
        (GMPO(), [-0.5, -0.5], [-0.5 * 1.8] * 2),
        (RLOO(), [-1.0, -1.0], [-2.0, -2.0]),  # 3.24, truncated
    ],
)
def test_the_correction_has_the_level_of_the_objective(policy, objective, uncorrected, corrected) -> None:
    assert step(policy, objective, correction=False)[0] == pytest.approx(uncorrected)
    assert step(policy, objective)[0] == pytest.approx(corrected)


def test_a_mask_takes_all_of_a_sequence_that_has_one_gradient(policy: str) -> None:
    # Of the token that is far off alone, half the gradient of both would have been left.
    masks = SamplerCorrection(action="mask", upper=1.5)
    assert step(policy, GSPO(), correction=masks)[0] == [0.0, 0.0]
    assert step(policy, ClippedObjective(), correction=masks)[0] == pytest.approx([-0.5 * 1.2, 0.0])
    assert masks.level is None  # as it was given, whoever used it


def test_a_correction_that_is_not_applied_is_not_told_of(policy: str) -> None:
    gradient, figures = step(policy, VESPO())
    assert step(policy, VESPO(), correction=False) == (gradient, figures)
    assert "sampling/kl_k3" in figures
    assert not any("out_of_bounds" in name or "importance_sampling" in name for name in figures)


def test_rewards_per_step_that_credit_no_step_are_told_of_once(policy: str, caplog: pytest.LogCaptureFixture) -> None:
    def learn(module: GRPOModule, *widths: int) -> None:
        rows = [SimpleNamespace(advantages=torch.zeros(2, width)) for width in widths]
        module._warn_of_steps(SimpleNamespace(windows=[SimpleNamespace(micro_batches=rows)]))

    of_tokens, of_sequences = GRPOModule(policy), GRPOModule(policy, objective=RLOO())
    with caplog.at_level(logging.WARNING, "grpo_lightning"):
        learn(of_tokens, 3)
        learn(of_sequences, 1, 1)
        assert not caplog.messages
        learn(of_sequences, 1, 3)
        learn(of_sequences, 3)
    assert len(caplog.messages) == 1
    assert "--model.objective RLOO has one gradient for a whole sequence" in caplog.messages[0]


def test_the_reference_is_loaded_to_train_alone(policy: str) -> None:
    module = GRPOModule(policy, objective=ClippedObjective(beta=0.04))
    loaded = []
    for function in ("validate", "test", "predict", "fit"):
        module._trainer = SimpleNamespace(  # type: ignore[assignment]
            precision="32-true",
            strategy=SimpleNamespace(root_device=torch.device("cpu")),
            state=SimpleNamespace(fn=function),
        )
        module.configure_model()
        loaded.append(module.reference is not None)
    assert loaded == [False, False, False, True]
