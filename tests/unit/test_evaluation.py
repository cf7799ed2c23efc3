"""pass@k against brute force, maj@k with ties, tallies by hand, Wilson's interval against known figures."""

from __future__ import annotations

import math
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pytest

from grpo_lightning.evaluation import MajorityAtK, PassAtK, Tally, judge, wilson_interval
from grpo_lightning.rewards import RewardScorer
from grpo_lightning.types import Completion, Prompt


@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize("right", [0, 1, 2, 4, 5])
def test_pass_at_k_is_the_share_of_k_subsets_with_a_right_sample(k: int, right: int) -> None:
    correct = [True] * right + [False] * (5 - right)
    subsets = list(combinations(correct, k))
    metric = PassAtK(k)
    metric.update(correct)
    assert float(metric.compute()) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-6)


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


def _source(scores: dict[str, float | None]) -> Any:
    """Completions score what the table says."""
    return SimpleNamespace(
        name="scripted",
        correctness=lambda completions, **_: [scores[text] for text in completions],
        extract_answer=lambda text: text,
    )


def _says(*texts: str, finished: bool = True) -> list[Completion]:
    return [Completion(token_ids=[0] * len(t), logprobs=[0.0] * len(t), finished=finished, text=t) for t in texts]


def _problem(row: int = 0, valid: bool = True, **columns: Any) -> Prompt:
    return Prompt(token_ids=[1], text="Q", columns=columns, row=row, valid=valid)


def test_a_tally_by_hand() -> None:
    tally = Tally(_source({"yes": 1.0, "no": 0.0}), greedy=True, samples=2)
    tally.add(
        [_problem(level=1), _problem(level=2, subject="sums"), _problem(level=None), _problem(valid=False)],
        [_says("yes"), _says("no", finished=False), _says("yes"), _says("yes")],
        [_says("yes", "no"), _says("no", "no"), _says("no", "yes"), _says("yes", "yes")],
    )
    assert tally.result() == pytest.approx(
        {
            "mean_length": 8 / 3,
            "clipped_ratio": 1 / 3,
            "accuracy": 2 / 3,
            "pass@1": 1 / 3,
            "pass@2": 2 / 3,
            "maj@2": 1 / 3,
            "problems": 3.0,
            "level=1/accuracy": 1.0,
            "level=2/accuracy": 0.0,
            "subject=sums/accuracy": 0.0,
        }
    )
    assert [(r["completion"], r["greedy"], r["correct"]) for r in tally.records[3:6]] == [
        ("no", True, False),
        ("no", False, False),
        ("no", False, False),
    ]
    assert len(tally.records) == 9


def test_without_a_greedy_answer_a_parts_accuracy_is_that_of_all_samples() -> None:
    tally = Tally(_source({"yes": 1.0, "no": 0.0}), greedy=False, samples=4)
    tally.add(
        [_problem(level=1), _problem(level=1), _problem(level=2)],
        [[], [], []],
        [_says("no", "yes", "yes", "yes"), _says("yes", "no", "no", "no"), _says("no", "no", "yes", "no")],
    )
    found = tally.result()
    assert found["level=1/accuracy"] == (3 / 4 + 1 / 4) / 2
    assert found["level=2/accuracy"] == 1 / 4
    assert found["accuracy"] == found["pass@1"] == pytest.approx(5 / 12)


def test_problems_without_a_verdict_are_in_no_figure() -> None:
    tally = Tally(_source({"yes": 1.0, "no": 0.0, "?": None}), greedy=True, samples=0)
    tally.add([_problem(level=1), _problem(level=2)], [_says("?"), _says("no")], [[], []])
    tally.add([_problem(level=3)], [_says("yes")], [[]])
    found = tally.result()
    assert (found["problems"], found["unreadable_golds"], found["accuracy"]) == (2.0, 1.0, 0.5)
    assert "level=1/accuracy" not in found
    assert [record["completion"] for record in tally.records] == ["no", "yes"]


def test_no_problem_no_figure() -> None:
    tally = Tally(_source({"?": None}), greedy=True, samples=1)
    tally.add([_problem()], [_says("?")], [_says("?")])
    found = tally.result()
    assert (found["problems"], found["unreadable_golds"]) == (0.0, 1.0)
    assert math.isnan(found["accuracy"])
    assert math.isnan(found["pass@1"])
    only_copies = Tally(_source({}), greedy=True, samples=0)
    only_copies.add([_problem(valid=False)], [_says("yes")], [[]])
    assert only_copies.result()["problems"] == 0.0


def test_a_rule_that_punishes_wrong_answers_is_no_rule_that_accepts_them() -> None:
    source = _source({"good": 1.0, "bad": -1.0, "?": None})
    assert judge(
        RewardScorer([source.correctness]), [_problem(), _problem()], [_says("good", "bad"), _says("?", "bad")]
    ) == [
        [True, False],
        [None, False],
    ]


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


def test_the_interval_holds_the_share() -> None:
    for problems in range(1, 60):
        assert wilson_interval(0, problems)[0] == 0.0
        assert wilson_interval(problems, problems)[1] == 1.0


def test_nothing_is_known_without_trials() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)
