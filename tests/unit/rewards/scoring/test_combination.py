"""Weights, gates and bounds by hand."""

from __future__ import annotations

import math

import pytest

from grpo_lightning.errors import RunStopped, UserError
from grpo_lightning.rewards.scoring.combination import Combination, Gate, LinearWeight

NAN = math.nan
TERMS = {"right": [1.0, 0.0, NAN, 1.0], "form": [0.5, 0.5, 0.5, NAN], "length": [-2.0, -2.0, -2.0, -2.0]}


def test_weighted_sum_of_what_applies() -> None:
    combination = Combination(["right", "form", "length"], weights=[2.0, 1.0, 0.25])
    assert combination.weights(7) == {"right": 2.0, "form": 1.0, "length": 0.25}
    assert combination.total(TERMS, combination.weights(0)) == [2.0, 0.0, 0.0, 1.5]
    nothing = {name: [NAN] for name in TERMS}
    assert math.isnan(combination.total(nothing, combination.weights(0))[0])


def test_a_gate_is_open_where_the_other_reward_has_reached_enough() -> None:
    combination = Combination(list(TERMS), gates={"form": Gate(reward="right", at_least=1.0)})
    assert combination.shut(TERMS) == {"form": [False, True, True, False]}  # not known whether right: shut


def test_the_sum_is_held_within_bounds_and_not_its_terms() -> None:
    combination = Combination(["a", "b"], clip=(-1.0, 2.0))
    assert combination.total({"a": [5.0, -4.0, 1.0], "b": [-4.0, 1.0, 0.5]}, {"a": 1.0, "b": 1.0}) == [1.0, -1.0, 1.5]


def test_a_scheduled_weight_moves_along_a_line_and_stays() -> None:
    combination = Combination(["dense", "core"], weights=[LinearWeight(start=1.0, end=0.2, steps=4), 1.0])
    assert [combination.weights(step)["dense"] for step in (0, 1, 4, 9)] == pytest.approx([1.0, 0.8, 0.2, 0.2])
    assert combination.scheduled == {"dense"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": [1.0]}, "--rollout.reward_weights has 1 numbers for 2 rewards"),
        ({"gates": {"c": Gate(reward="a", at_least=1)}}, "--rollout.reward_gates names 'c'; the rewards are a, b"),
        ({"gates": {"a": Gate(reward="d", at_least=1)}}, "--rollout.reward_gates names 'd'"),
        ({"weights": [1.0, NAN]}, "--rollout.reward_weights: nan is no weight"),
        ({"gates": {"a": Gate(reward="b", at_least=NAN)}}, "--rollout.reward_gates.a.at_least nan"),
        ({"clip": (NAN, 1.0)}, r"--rollout.reward_clip \[nan, 1.0\]"),
        ({"clip": (1.0, 1.0)}, r"--rollout.reward_clip \[1.0, 1.0\]"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Combination(["a", "b"], **options)


def test_a_schedule_that_runs_off_is_refused() -> None:
    with pytest.raises(UserError, match=r"--rollout\.reward_weights: inf"):
        Combination(["a"], weights=[lambda step: math.inf]).weights(3)


def test_a_schedule_that_fails_is_named() -> None:
    with pytest.raises(RunStopped, match="of dense failed at step 3: KeyError"):
        Combination(["dense"], weights=[lambda step: {}[step]]).weights(3)


def test_a_schedule_needs_steps() -> None:
    with pytest.raises(UserError, match=r"LinearWeight.steps 0"):
        LinearWeight(start=1.0, end=0.0, steps=0)
