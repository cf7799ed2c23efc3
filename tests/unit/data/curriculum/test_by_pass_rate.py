from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from grpo_lightning.data.curriculum import ByPassRate, Measurement
from grpo_lightning.errors import UserError
from tests.unit.data.curriculum.test_base import prompts


def _ready(count: int = 5, *, batch_size: int = 2, seed: int = 0, **arguments: Any) -> ByPassRate:
    curriculum = ByPassRate(**arguments)
    curriculum.prepare(prompts(*range(count)))
    curriculum.begin(batch_size=batch_size, seed=seed)
    return curriculum


def _measured(*groups: list[float], **terms: list[list[float]]) -> list[Measurement]:
    return [
        Measurement(number=n, rewards=group, terms={name: of_groups[n] for name, of_groups in terms.items()})
        for n, group in enumerate(groups)
    ]


def test_weights_are_the_variance_and_never_less_than_revisit() -> None:
    curriculum = _ready(6)
    curriculum.record(_measured([0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]))
    # 4 p (1 - p) for p = 0, 1/4, 1/2, 3/4, 1; the sixth was never asked.
    assert curriculum.weights().tolist() == [0.1, 0.75, 1.0, 0.75, 0.1, 1.0]


def test_weights_of_another_target_and_other_bounds() -> None:
    curriculum = _ready(5, target=0.75, solved_at=0.9, hopeless_at=0.25, revisit=0.2)
    curriculum.record(_measured([0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]))
    # 1 - ((1/2 - 3/4) / (3/4))^2 = 8/9; 1/4 is hopeless here, though its formula says 5/9.
    assert curriculum.weights().tolist() == pytest.approx([0.2, 0.2, 8 / 9, 1.0, 0.2])
    curriculum = _ready(3, target=0.25)
    curriculum.record(_measured([1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]))
    assert curriculum.weights().tolist() == pytest.approx([1.0, 8 / 9, 5 / 9])


def test_rewards_that_pass_and_those_that_do_not_apply() -> None:
    curriculum = _ready(4, pass_at=0.5)
    figures = curriculum.record(_measured([0.5, 0.4, -1.0, 2.0], [1.0], [], [0.0, 0.0]))
    assert curriculum.pass_rates == {10: 0.5, 11: 1.0, 13: 0.0}
    assert figures == {
        "curriculum/asked": 0.75,
        "curriculum/pass_rate": 0.5,
        "curriculum/frac_solved": 1 / 3,
        "curriculum/frac_hopeless": 1 / 3,
    }
    assert _ready().record([]) == {}


def test_one_reward_of_several_says_what_passes() -> None:
    curriculum = _ready(2, reward="right")
    groups = _measured([3.0, 3.0], [0.5, 0.5], right=[[1.0, 0.0], [0.0, 0.0]], tidy=[[2.0, 3.0], [0.5, 0.5]])
    curriculum.record(groups)
    assert curriculum.pass_rates == {10: 0.5, 11: 0.0}
    with pytest.raises(UserError, match=r"--data\.curriculum\.reward rigth: no such reward; this run has right, tidy"):
        _ready(2, reward="rigth").record(groups)


def test_only_the_last_measurement_counts() -> None:
    curriculum = _ready(1, batch_size=1)
    curriculum.record(_measured([1.0, 1.0]))
    curriculum.record(_measured([1.0, 0.0]))
    assert curriculum.pass_rates == {10: 0.5}


def test_prompts_are_drawn_by_weight_and_no_prompt_twice() -> None:
    curriculum = _ready(4, batch_size=1)
    curriculum.record(_measured([1.0, 0.0], [1.0, 1.0], [0.0, 0.0]))
    drawn = Counter(curriculum.choose(epoch=0, start=start)[0] for start in range(4400))
    # Weights 1, 0.1, 0.1 and, never asked, 1: of 4400, 2000, 200, 200 and 2000 (standard deviations 33 and 14).
    assert [drawn[number] for number in range(4)] == [
        pytest.approx(expected, abs=margin) for expected, margin in ((2000, 130), (200, 55), (200, 55), (2000, 130))
    ]
    curriculum.begin(batch_size=3, seed=0)
    for start in range(50):
        assert len(set(curriculum.choose(epoch=0, start=start))) == 3
    curriculum.begin(batch_size=4, seed=0)
    assert sorted(curriculum.choose(epoch=0, start=0)) == [0, 1, 2, 3]


def test_a_choice_depends_on_seed_epoch_place_and_pass_rates_alone() -> None:
    def choices(curriculum: ByPassRate) -> list[list[int]]:
        return [curriculum.choose(epoch=epoch, start=start) for epoch in (0, 1) for start in (0, 4)]

    one = _ready(40, batch_size=4, seed=3)
    assert choices(one) == choices(one) == choices(_ready(40, batch_size=4, seed=3))
    assert len({tuple(choice) for choice in choices(one)}) == 4
    assert choices(one) != choices(_ready(40, batch_size=4, seed=4))
    assert all(type(number) is int for choice in choices(one) for number in choice)
    one.record(_measured(*[[1.0, 1.0]] * 36))
    assert choices(one) != choices(_ready(40, batch_size=4, seed=3))
    other = _ready(40, batch_size=4, seed=3)
    other.load_state_dict(one.state_dict())
    assert choices(other) == choices(one)
    assert _ready(seed=-1).choose(epoch=0, start=0)


def test_a_saved_state_does_not_change_with_the_run() -> None:
    curriculum = _ready(2)
    curriculum.record(_measured([1.0, 0.0]))
    state = curriculum.state_dict()
    curriculum.record(_measured([1.0, 1.0]))
    assert state == {"pass_rates": {10: 0.5}}
    again = _ready(2)
    again.load_state_dict(state)
    again.record(_measured([1.0, 1.0]))
    assert state == {"pass_rates": {10: 0.5}}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target": 1.1}, r"--data\.curriculum\.target 1\.1: a pass rate"),
        ({"solved_at": 0.2, "hopeless_at": 0.2}, r"--data\.curriculum\.hopeless_at 0\.2: must be less .* is 0\.2"),
        ({"revisit": 0.0}, r"--data\.curriculum\.revisit 0\.0: a weight above 0"),
    ],
)
def test_numbers_that_make_no_sense(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ByPassRate(**arguments)
