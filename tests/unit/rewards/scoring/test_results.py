"""What a reward may return."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from grpo_lightning.errors import UserError
from grpo_lightning.rewards.scoring.results import checked_scores


def test_numbers_none_and_steps() -> None:
    result = [1, np.float32(0.5), [(0.25, 0), (np.int64(1), 2)], []]
    assert checked_scores("f", result, lengths=[3, 3, 3, 3])[:3] == [1.0, 0.5, [(0.25, 0), (1.0, 2)]]
    assert math.isnan(checked_scores("f", [None], lengths=[3])[0])  # type: ignore[arg-type]
    assert math.isnan(checked_scores("f", [[]], lengths=[3])[0])  # type: ignore[arg-type]  # no step, no score
    assert checked_scores("f", np.array([1.0, 2.0]), lengths=[3, 3]) == [1.0, 2.0]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ([0.5], "returned 0.5 as a step of row 0: return pairs"),
        ([(0.5, 1, 2)], "as a step of row 0"),
        (
            [(0.5, 3)],
            "returned 3 as the last token of a step of row 0: return an index into its completion_ids, 0 to 2",
        ),
        ([(0.5, -1)], "returned -1 as the last token"),
        ([(0.5, 1.0)], "returned 1.0 as the last token"),
        ([("x", 1)], "returned 'x' for row 0"),
        ([(math.nan, 1)], "returned nan for row 0"),
    ],
)
def test_steps_that_make_no_sense_are_refused(entry: Any, message: str) -> None:
    with pytest.raises(UserError, match=f"reward f {message}" if message.startswith("returned") else message):
        checked_scores("f", [entry], lengths=[3])


@pytest.mark.parametrize("entry", [np.array([1.0, 2.0]), np.ones((2, 2)), torch.ones(3)])
def test_an_array_where_one_number_is_due_is_refused(entry: Any) -> None:
    with pytest.raises(UserError, match=r"^reward f returned (array|tensor)\(.*for row 1: return a number") as caught:
        checked_scores("f", [0.5, entry], lengths=[3, 3])
    assert "\n" not in str(caught.value)
