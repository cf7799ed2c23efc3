"""Coefficients that follow a figure, rollout by rollout."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from grpo_lightning.callbacks import AdaptiveEntropy, AdaptiveKL
from grpo_lightning.errors import UserError


def module(beta: float = 0.04, entropy_coef: float = 0.0) -> Any:
    return SimpleNamespace(objective=SimpleNamespace(beta=beta), entropy_coef=entropy_coef)


def begun(callback: Any, pl_module: Any, state: dict[str, Any] | None = None) -> Any:
    """The callback in a run that begins, or goes on from a checkpoint."""
    callback.setup(None, pl_module, "fit")
    if state is not None:
        callback.load_state_dict(state)
    callback.on_train_start(None, pl_module)
    return callback


def rollout(callback: Any, pl_module: Any, *steps: dict[str, float]) -> list[dict[str, float]]:
    """One rollout of optimizer steps with these figures, and what is logged of them."""
    callback.on_train_batch_start(None, pl_module)
    for figures in steps:
        callback.on_step_figures(None, pl_module, figures)
    callback.on_train_batch_end(None, pl_module)
    return list(steps)


# --- KL -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seen", "beta"),
    [
        (4.51, 0.044),  # above 1.5 x 3
        (4.5, 0.04),
        (3.0, 0.04),
        (1.5, 0.04),
        (1.49, 0.036),  # below 0.5 x 3
        (0.0, 0.036),
        (math.nan, 0.04),
    ],
)
def test_beta_follows_the_kl_of_a_sequence_in_both_directions(seen: float, beta: float) -> None:
    pl_module = module()
    (logged,) = rollout(begun(AdaptiveKL(), pl_module), pl_module, {"kl_sequence": seen})
    assert pl_module.objective.beta == pytest.approx(beta, abs=1e-12)
    assert logged["kl_coef"] == 0.04, "what the step had, not what comes of it"


def test_beta_changes_once_a_rollout_by_the_mean_over_its_steps() -> None:
    pl_module = module()
    callback = begun(AdaptiveKL(), pl_module)
    logged = rollout(callback, pl_module, {"kl_sequence": 9.0}, {"kl_sequence": 1.0}, {"loss": 7.0})
    assert [figures["kl_coef"] for figures in logged] == [0.04] * 3
    assert pl_module.objective.beta == pytest.approx(0.044)  # mean 5
    rollout(callback, pl_module, {"kl_sequence": 0.1})
    assert pl_module.objective.beta == pytest.approx(0.044 * 0.9)
    rollout(callback, pl_module, {"loss": 7.0})
    rollout(callback, pl_module)
    assert pl_module.objective.beta == pytest.approx(0.044 * 0.9), "nothing was seen"


def test_beta_stays_within_its_bounds() -> None:
    pl_module = module(beta=0.45)
    callback = begun(AdaptiveKL(), pl_module)
    for _ in range(3):
        rollout(callback, pl_module, {"kl_sequence": 100.0})
    assert pl_module.objective.beta == 0.5
    for _ in range(100):
        rollout(callback, pl_module, {"kl_sequence": 0.0})
    assert pl_module.objective.beta == 0.001
    rollout(callback, pl_module, {"kl_sequence": 100.0})
    assert pl_module.objective.beta == pytest.approx(0.0011)


def test_a_resumed_run_goes_on_with_its_beta() -> None:
    first, second = module(), module()
    callback = begun(AdaptiveKL(), first)
    rollout(callback, first, {"kl_sequence": 100.0})
    resumed = begun(AdaptiveKL(), second, callback.state_dict())
    assert second.objective.beta == first.objective.beta == pytest.approx(0.044)
    for each, pl_module in ((callback, first), (resumed, second)):
        rollout(each, pl_module, {"kl_sequence": 100.0})
    assert second.objective.beta == first.objective.beta == pytest.approx(0.0484)


def test_what_has_no_kl_term_is_refused() -> None:
    with pytest.raises(UserError, match=r"^--model\.objective\.beta 0: AdaptiveKL .* no reference is loaded"):
        AdaptiveKL().setup(None, module(beta=0.0), "fit")
    with pytest.raises(UserError, match="AdaptiveKL: int has no KL term"):
        AdaptiveKL().setup(None, SimpleNamespace(objective=7), "fit")
    with pytest.raises(UserError, match="AdaptiveKL: SimpleNamespace has no KL term"):
        AdaptiveKL().setup(None, SimpleNamespace(), "fit")
    with pytest.raises(UserError, match=r"^--model\.objective\.beta 0\.6: AdaptiveKL keeps it within \[0\.001, 0\.5\]"):
        AdaptiveKL().setup(None, module(beta=0.6), "fit")
    AdaptiveKL().setup(None, module(beta=0.0), "validate")


@pytest.mark.parametrize("wrong", [{"target": 0.0}, {"rate": 0.0}, {"rate": 1.0}, {"minimum": 0.0}, {"maximum": 1e-4}])
def test_settings_of_the_kl_weight_that_mean_nothing(wrong: dict[str, float]) -> None:
    with pytest.raises(UserError, match=rf"AdaptiveKL\..*{next(iter(wrong))} {next(iter(wrong.values()))}"):
        AdaptiveKL(**wrong)


# --- entropy ------------------------------------------------------------------------------------------------------


def test_the_entropy_bonus_is_there_only_while_the_entropy_is_low() -> None:
    pl_module = module(entropy_coef=0.010)
    callback = begun(AdaptiveEntropy(), pl_module)
    weights = [pl_module.entropy_coef]
    for seen in (0.2, 0.1, 0.21, 0.3, 0.19):
        rollout(callback, pl_module, {"entropy": seen})
        weights.append(pl_module.entropy_coef)
    # Coefficient 0.010, 0.015, 0.020, 0.015, 0.010, 0.015; no bonus before and after an entropy above the target.
    assert weights == pytest.approx([0.0, 0.015, 0.020, 0.0, 0.0, 0.015])


def test_the_entropy_coefficient_stays_within_its_bounds_and_is_logged_as_used() -> None:
    pl_module = module()
    callback = begun(AdaptiveEntropy(target=1.0, delta=0.3, maximum=0.5), pl_module)
    logged = [rollout(callback, pl_module, {"entropy": 1.0})[0]["entropy_coef"] for _ in range(4)]
    assert logged == pytest.approx([0.0, 0.3, 0.5, 0.5])
    for _ in range(3):
        rollout(callback, pl_module, {"entropy": 2.0})
    rollout(callback, pl_module, {"entropy": 0.5})
    assert pl_module.entropy_coef == pytest.approx(0.3), "it had fallen to 0 and no lower"


@pytest.mark.parametrize("seen", [0.1, 0.9])
def test_a_resumed_run_goes_on_with_its_entropy_coefficient(seen: float) -> None:
    first, second = module(entropy_coef=0.1), module(entropy_coef=0.1)
    callback = begun(AdaptiveEntropy(), first)
    rollout(callback, first, {"entropy": seen})
    resumed = begun(AdaptiveEntropy(), second, callback.state_dict())
    assert second.entropy_coef == first.entropy_coef == (pytest.approx(0.105) if seen == 0.1 else 0.0)
    rollout(callback, first, {"entropy": 0.1})
    rollout(resumed, second, {"entropy": 0.1})
    assert second.entropy_coef == first.entropy_coef > 0


def test_what_has_no_entropy_bonus_is_refused() -> None:
    with pytest.raises(UserError, match="AdaptiveEntropy: SimpleNamespace has no entropy bonus"):
        AdaptiveEntropy().setup(None, SimpleNamespace(), "fit")
    with pytest.raises(UserError, match=r"^--model\.entropy_coef 2\.0: AdaptiveEntropy keeps it within \[0\.0, 1\.0\]"):
        AdaptiveEntropy().setup(None, module(entropy_coef=2.0), "fit")


@pytest.mark.parametrize("wrong", [{"target": 0.0}, {"delta": 0.0}, {"minimum": -0.1}, {"maximum": -1.0}])
def test_settings_of_the_entropy_coefficient_that_mean_nothing(wrong: dict[str, float]) -> None:
    with pytest.raises(UserError, match=rf"AdaptiveEntropy\..*{next(iter(wrong))} {next(iter(wrong.values()))}"):
        AdaptiveEntropy(**wrong)
