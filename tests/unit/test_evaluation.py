"""pass@k against brute force, maj@k with ties, Wilson's interval against known figures."""

from __future__ import annotations

import math
from itertools import combinations

import pytest

from grpo_lightning.evaluation import MajorityAtK, PassAtK, wilson_interval


@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize("right", [0, 1, 2, 4, 5])
def test_pass_at_k_is_the_share_of_k_subsets_with_a_right_sample(k: int, right: int) -> None:
    correct = [True] * right + [False] * (5 - right)
    subsets = list(combinations(correct, k))
    metric = PassAtK(k)
    metric.update(correct)
    assert float(metric.compute()) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-12)


def test_pass_at_k_averages_problems_and_is_not_the_biased_formula() -> None:
    metric = PassAtK(2)
    metric.update([True, False, False, False])  # 1 - C(3,2)/C(4,2) = 0.5; the biased 1 - (3/4)^2 is 0.4375
    metric.update([True, True, True, True])
    assert float(metric.compute()) == pytest.approx(0.75)


def test_pass_at_one_is_the_accuracy() -> None:
    metric = PassAtK(1)
    for correct in ([True, False], [False, False], [True, True]):
        metric.update(correct)
    assert float(metric.compute()) == pytest.approx(0.5)
    metric.reset()
    assert float(metric.compute()) == 0.0


@pytest.mark.parametrize(
    ("answers", "correct", "expected"),
    [
        (["7", "8", "7"], [True, False, True], 1.0),
        (["8", "7", "8"], [False, True, False], 0.0),
        (["8", "7"], [False, True], 0.0),  # a tie: the first given wins
        (["7", "8", "8", "7"], [True, False, False, True], 1.0),
        ([None, None, "7"], [False, False, True], 1.0),  # no answer has no vote
        ([None, None], [False, False], 0.0),
        (["", None, ""], [True, False, True], 1.0),  # an empty answer is one
    ],
)
def test_majority_takes_the_most_frequent_answer(answers: list, correct: list[bool], expected: float) -> None:
    metric = MajorityAtK()
    metric.update(answers, correct)
    assert float(metric.compute()) == expected


def test_a_problem_nobody_answered_still_counts() -> None:
    metric = MajorityAtK()
    metric.update(["7"], [True])
    metric.update([None], [False])
    assert float(metric.compute()) == 0.5


@pytest.mark.parametrize(
    ("right", "problems", "low", "high"),
    [
        (8, 10, 0.4902, 0.9433),
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (50, 100, 0.4038, 0.5962),
        (1, 1, 0.2065, 1.0),
    ],
)
def test_wilson_interval(right: int, problems: int, low: float, high: float) -> None:
    assert wilson_interval(right, problems) == pytest.approx((low, high), abs=1e-4)


def test_wilson_bounds_solve_their_equation() -> None:
    # A bound p is where the observed share lies z standard errors of p away.
    for bound in wilson_interval(33, 120):
        assert abs(33 / 120 - bound) == pytest.approx(1.96 * math.sqrt(bound * (1 - bound) / 120), rel=1e-9)


def test_nothing_is_known_without_trials() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)
