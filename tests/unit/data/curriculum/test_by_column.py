from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from grpo_lightning.data.curriculum import ByColumn, Measurement
from grpo_lightning.errors import UserError
from tests.unit.data.curriculum.test_base import prompts

LEVELS = [1 + n % 5 for n in range(100)]
MATH500 = Path(__file__).resolve().parents[5] / "shared" / "data" / "math500.jsonl"


def _ready(values: list[Any], *, batch_size: int = 10, seed: int = 0, **arguments: Any) -> ByColumn:
    curriculum = ByColumn(**arguments)
    curriculum.prepare(prompts(*values))
    curriculum.begin(batch_size=batch_size, seed=seed)
    return curriculum


def _levels(curriculum: ByColumn, epoch: int = 0) -> list[list[int]]:
    """The sorted levels of each rollout of an epoch."""
    return [sorted(LEVELS[n] for n in curriculum.choose(epoch=epoch, start=start)) for start in range(0, 100, 10)]


def test_one_level_after_the_other_and_then_all_of_them() -> None:
    curriculum = _ready(LEVELS)
    assert _levels(curriculum) == [[level] * 10 for level in (1, 1, 2, 2, 3, 3, 4, 4, 5, 5)]
    assert all(len(set(levels)) >= 3 for levels in _levels(curriculum, epoch=1)), "the next epoch is shuffled"


@pytest.mark.parametrize("arguments", [{}, {"rollouts": 4}, {"rollouts": 25}, {"mix": 0.3}, {"mix": 1.0}])
def test_each_prompt_once_an_epoch_in_an_order_of_its_own(arguments: dict[str, Any]) -> None:
    orders = [_ready(LEVELS, seed=seed, **arguments).order(epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert [sorted(order) for order in orders] == [list(range(100))] * 4
    assert len({tuple(order) for order in orders}) == 4
    assert orders[0] == _ready(LEVELS, **arguments).order(0)


def test_harder_levels_open_with_the_rollouts() -> None:
    # With 5 rollouts to the end, a fifth of the prompts opens at each: level 1 alone, levels 1 and 2, ...
    levels = _levels(_ready(LEVELS, rollouts=5))
    assert [rollout[-1] for rollout in levels[:5]] == [1, 2, 3, 4, 5]
    assert levels[0] == [1] * 10
    assert len(set(levels[3])) >= 3, "easier ones that were left over are among them"
    # With 20, two epochs: after half of the first, half of the way is done, but no prompt can be asked twice.
    slow = _ready(LEVELS, rollouts=20)
    assert _levels(slow) == [[level] * 10 for level in (1, 1, 2, 2, 3, 3, 4, 4, 5, 5)]
    # In its second epoch rollout 11 of 20 opens 55 of 100 prompts: levels 1 to 3.
    second = _levels(slow, epoch=1)
    assert second[0][-1] <= 3
    assert len(set(second[0])) == 3


def test_a_share_of_each_rollout_comes_from_all_levels() -> None:
    curriculum = _ready(LEVELS, mix=0.2)
    drawn = _levels(curriculum)
    # Two of ten each; the other eight are in order: 80 prompts, from the lowest on.
    strangers = [sum(level > 2 for level in rollout) for rollout in drawn[:3]]
    assert max(strangers) <= 2
    assert sum(strangers) > 0
    assert sum(level < 4 for rollout in drawn[-2:] for level in rollout) > 0
    assert len({rollout[0] for rollout in _levels(_ready(LEVELS, mix=1.0))}) <= 2, "all mixed is a shuffled epoch"
    # 0.25 of ten is now two, now three: 25 in ten rollouts.
    first = _levels(_ready([1] * 50 + [2] * 50, mix=0.25))
    assert [len(rollout) for rollout in first] == [10] * 10


def test_what_is_left_out_is_chance_and_not_the_hardest() -> None:
    curriculum = _ready([1] * 5 + [2] * 8, batch_size=5)
    left_out = [curriculum.order(epoch)[10:] for epoch in range(20)]
    assert any(number < 5 for numbers in left_out for number in numbers)
    assert len({tuple(numbers) for numbers in left_out}) > 5


@pytest.mark.parametrize(
    ("values", "arguments", "order"),
    [
        (["Level 10", "Level 9", "Level -1.5", "2"], {}, [2, 3, 1, 0]),
        ([0.9, 1e-3, 0.5], {}, [1, 2, 0]),
        (["hard", "easy", "medium"], {"order": ["easy", "medium", "hard"]}, [1, 2, 0]),
        ([1, 3, None, 2], {"order": [3, 2, "1", None]}, [1, 3, 0, 2]),
    ],
)
def test_values_from_easy_to_hard(values: list[Any], arguments: dict[str, Any], order: list[int]) -> None:
    assert _ready(values, batch_size=1, **arguments).order(0) == order


def test_the_levels_of_math() -> None:
    if not MATH500.exists():
        pytest.skip("needs MATH-500")
    levels = [json.loads(line)["level"] for line in MATH500.read_text("utf-8").splitlines()]
    curriculum = _ready([f"Level {level}" for level in levels], batch_size=1)
    asked = [levels[number] for number in curriculum.order(0)]
    assert asked == sorted(asked)


def test_the_mean_level_of_a_rollout_is_logged() -> None:
    curriculum = _ready(["a", "b", "c"], batch_size=1, order=["c", "b", "a"])
    seen = [Measurement(number=number, rewards=[], terms={}) for number in (0, 1)]
    assert curriculum.record(seen) == {"curriculum/level": 1.5}
    assert curriculum.record([]) == {}


def test_another_order_is_another_place() -> None:
    changed = [{"batch_size": 5}, {"rollouts": 3}, {"mix": 0.5}, {"order": list(range(1, 6))}]
    settings = [_ready(LEVELS, **arguments).settings() for arguments in ({}, *changed)]
    assert all(settings.count(one) == 1 for one in settings)


@pytest.mark.parametrize(
    ("values", "arguments", "message"),
    [
        ([1], {"rollouts": 0}, r"--data\.curriculum\.rollouts 0: .* at least 1"),
        ([1], {"mix": 1.5}, r"--data\.curriculum\.mix 1\.5: a share"),
        ([1], {"order": [1, 2, "1"]}, r"--data\.curriculum\.order names 1 twice"),
        (
            [1],
            {"column": "grade"},
            r"--data\.curriculum\.column grade: --data\.source listed, row 10 .*question, level",
        ),
        ([1, "?"], {}, r"column level: --data\.source listed, row 11 has '\?', which is no number; .*order"),
        ([1, None], {}, r"row 11 has None, which is no number; .*null"),
        ([1, float("nan")], {}, "row 11 has nan, which is no number"),
        ([1, [2]], {}, r"row 11 has \[2\], which is no number"),
        (
            [1, 7],
            {"order": [1, 2]},
            r"--data\.curriculum\.order does not have 7, which .*row 11 has as 'level'; add it",
        ),
    ],
)
def test_bad_input_is_named_in_one_line(values: list[Any], arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as raised:
        _ready(values, batch_size=1, **arguments)
    assert "\n" not in str(raised.value)
