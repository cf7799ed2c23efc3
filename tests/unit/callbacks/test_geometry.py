"""Numbers that do not fit together, and the nearest ones that do."""

from __future__ import annotations

import logging
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from grpo_lightning.advantages import ReinforcePlusPlus, TokenEstimator, group_normalized
from grpo_lightning.callbacks.geometry import (
    check_estimator,
    check_max_steps,
    check_ratios,
    check_windows,
    warn_of_epochs,
    warn_of_objective,
    warn_of_rare_checkpoints,
)
from grpo_lightning.engines.base import Sampling
from grpo_lightning.errors import UserError
from grpo_lightning.functional.reduction import sequence_mean, sequence_sum, token_mean
from grpo_lightning.objectives import GMPO, GSPO, LUSPO, RLOO, VESPO, ClippedObjective, Objective
from grpo_lightning.rollout.sampler_correction import SamplerCorrection


@pytest.mark.parametrize(
    ("prompts", "updates", "ranks", "nearest"),
    [(12, 3, 2, None), (12, 5, 1, "10 or 15"), (12, 4, 2, "8 or 16"), (2, 3, 1, "3")],
)
def test_windows(prompts: int, updates: int, ranks: int, nearest: str | None) -> None:
    if nearest is None:
        check_windows(prompts, updates=updates, world_size=ranks)
        return
    with pytest.raises(UserError, match=rf"--data.prompts_per_step {prompts} .*nearest valid: {nearest}$"):
        check_windows(prompts, updates=updates, world_size=ranks)


@pytest.mark.parametrize(
    ("max_steps", "done", "nearest"),
    [
        (-1, 0, None),
        (12, 0, None),
        (13, 0, "12 or 18"),
        (5, 0, "6"),
        (13, 7, None),
        (12, 7, "13"),
        (18, 7, "13 or 19"),
        (7, 7, None),
        (3, 7, None),
    ],
)
def test_max_steps(max_steps: int, done: int, nearest: str | None) -> None:
    if nearest is None:
        check_max_steps(max_steps, done=done, passes=2, updates=3)
        return
    with pytest.raises(UserError, match=rf"--trainer.max_steps {max_steps} .*2 passes x 3 .*nearest valid: {nearest}$"):
        check_max_steps(max_steps, done=done, passes=2, updates=3)


def test_checkpoints_that_are_stepped_over(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "grpo_lightning"):
        warn_of_rare_checkpoints([0, 6, 12, 10, 4], steps=6)
    assert [(m.partition(":")[0], m.rpartition(": ")[2]) for m in caplog.messages] == [
        ("ModelCheckpoint(every_n_train_steps=10)", "6 or 12"),
        ("ModelCheckpoint(every_n_train_steps=4)", "6"),
    ]


class Critics(TokenEstimator):
    needs_values = True

    def __call__(self, rewards, *, mask, values=None):
        raise NotImplementedError


def module(objective: Objective | None = None, estimator=group_normalized, **changes) -> Any:
    """What of a ``RolloutModule`` is looked at."""
    settings = {"correction": None, "off_policy_mask": None, **changes}
    return SimpleNamespace(objective=objective or ClippedObjective(), estimator=estimator, **settings)


IN_REWARD = ClippedObjective(beta=0.1, kl_in="reward")


@pytest.mark.parametrize(
    ("estimator", "of", "changes", "line"),
    [
        (group_normalized, module(), {"group_size": 1}, "group_size 1: group_normalized compares"),
        (ReinforcePlusPlus(), module(), {"group_size": 1}, None),
        (group_normalized, module(estimator=Critics()), {}, "takes its advantages from its critic"),
        (Critics(), module(), {}, "needs a critic, which SimpleNamespace has not"),
        (
            ReinforcePlusPlus(),
            module(),
            {"tries": 2},
            "tries 2 .* teach too with --rollout.advantages ReinforcePlusPlus",
        ),
        (group_normalized, module(IN_REWARD), {"tries": 2}, "teach too with --model.objective.kl_in reward"),
        (group_normalized, module(IN_REWARD), {"mask_truncated": True}, "--rollout.mask_truncated true: a completion"),
        (ReinforcePlusPlus(), module(IN_REWARD), {"mask_truncated": True}, None),
        (ReinforcePlusPlus(), module(GMPO()), {}, "--rollout.advantages ReinforcePlusPlus: .* --model.objective GMPO"),
        (ReinforcePlusPlus(), module(GSPO(token_gradient=True)), {}, None),
        (Critics(), module(RLOO(), Critics()), {}, "--rollout.advantages Critics: .* --model.objective RLOO has"),
        (group_normalized, module(), {"normalize_each_reward": True, "clips": True}, "--rollout.reward_clip bounds"),
        (
            group_normalized,
            module(IN_REWARD),
            {"normalize_each_reward": True},
            "does not go with a KL term in the reward",
        ),
        (group_normalized, module(), {"normalize_each_reward": True, "tries": 3, "mask_truncated": True}, None),
    ],
)
def test_what_cannot_make_advantages_together(estimator, of, changes, line) -> None:
    usual = {"group_size": 4, "normalize_each_reward": False, "clips": False, "tries": 1, "mask_truncated": False}
    with nullcontext() if line is None else pytest.raises(UserError, match=line):
        check_estimator(estimator, of, **(usual | changes))


@pytest.mark.parametrize(
    ("of", "flag"),
    [
        (module(correction=SamplerCorrection()), "--model.correction compares"),
        (module(off_policy_mask=object()), "--model.off_policy_threshold compares"),
        (module(VESPO()), "--model.objective VESPO compares"),
        (module(), None),
    ],
)
def test_ratios_need_the_whole_distribution(of, flag) -> None:
    check_ratios(of, Sampling(max_completion_length=8))
    with nullcontext() if flag is None else pytest.raises(UserError, match=flag):
        check_ratios(of, Sampling(max_completion_length=8, top_p=0.9))


@pytest.mark.parametrize(
    ("objective", "level", "fits"),
    [
        (GSPO(), "token", "geometric"),
        (LUSPO(), "token", "geometric"),
        (GMPO(), "token", "geometric"),
        (RLOO(), "token", "sequence"),
        (GSPO(), "sequence", None),
        (RLOO(), "geometric", None),
        (GSPO(token_gradient=True), "token", None),
        (ClippedObjective(), "token", None),
        (ClippedObjective(), "sequence", None),
    ],
)
def test_no_weights_by_token_where_a_sequence_has_one_gradient(objective, level, fits) -> None:
    name = type(objective).__name__
    line = rf"^--model.correction.level token: .* --model.objective {name} has for .*; use {fits}, or leave level out$"
    with nullcontext() if fits is None else pytest.raises(UserError, match=line):
        check_ratios(module(objective, correction=SamplerCorrection(level=level)), Sampling(max_completion_length=8))


def test_a_sequence_objective_with_another_reduction_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    for objective, reduction in ((GSPO(), sequence_mean), (LUSPO(), sequence_sum), (ClippedObjective(), token_mean)):
        warn_of_objective(objective, reduction)
    assert not caplog.records
    warn_of_objective(GSPO(), token_mean)
    assert "--model.objective GSPO is defined with --rollout.reduction" in caplog.text
    assert "functional.reduction.sequence_mean; with token_mean" in caplog.text


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"kl_in": "reward"}, "kl_in reward with kl_estimator k3 pulls next to nothing"),
        ({"kl_in": "reward", "kl_estimator": "k1"}, None),
        ({"kl_estimator": "k1", "kl_ratio": False}, "k1 in the loss has no gradient but noise"),
        ({"kl_estimator": "k1"}, None),
        ({}, None),
    ],
)
def test_a_kl_term_that_pulls_on_nothing_is_warned_of(settings, line, caplog: pytest.LogCaptureFixture) -> None:
    warn_of_objective(ClippedObjective(beta=0.1, **settings), token_mean)
    assert line in caplog.text if line else not caplog.records


@pytest.mark.parametrize(
    ("max_steps", "max_epochs", "end"),
    [(40, 1, 18), (40, 2, 36), (40, 3, None), (36, 2, None), (-1, 1, None), (40, -1, None), (40, None, None)],
)
def test_the_bound_that_ends_a_run(
    max_steps: int, max_epochs: int | None, end: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Epochs of 9 rollouts, 2 optimizer steps each."""
    warn_of_epochs(max_steps, max_epochs=max_epochs, batches=9, steps=2)
    assert (f"--trainer.max_steps 40: --trainer.max_epochs {max_epochs} ends the run before" in caplog.text) == bool(
        end
    )
    assert end is None or f"after step {end};" in caplog.text
