"""Numbers that do not fit together, and the nearest ones that do."""

from __future__ import annotations

import logging

import pytest

from grpo_lightning.callbacks.geometry import check_max_steps, check_windows, warn_of_rare_checkpoints
from grpo_lightning.errors import UserError


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
