from __future__ import annotations

import pytest

from grpo_lightning.rewards.answers.doubts import is_denied, is_taken_back, is_untrue


@pytest.mark.parametrize(
    ("before", "untrue"),
    [
        ("It is false that the ", True),
        ("I doubt that the correct ", True),
        ("Nobody thinks the ", True),
        ("There is no doubt that the ", False),
        ("It is not 3, so the ", False),
        ("I don't think that 4 works. The ", False),
    ],
)
def test_is_untrue(before, untrue):
    assert is_untrue(before) is untrue


@pytest.mark.parametrize(
    ("before", "denied"),
    [
        ("it is at least ", True),
        ("everything but ", True),
        ("There is no way it is ", True),
        ("it could be ", True),
        ("she has ", False),
        ("the least value is ", False),
        ("the number who could come is ", False),
    ],
)
def test_is_denied(before, denied):
    assert is_denied(before) is denied


@pytest.mark.parametrize(
    ("after", "back"),
    [
        (", not really, it is 6", True),
        (" but 6", True),
        (" as well as 6", True),
        ("? 6?", True),
        (" - maybe 6", True),
        ("-ish plus 1", True),
        (" plus $1$", True),
        (" million", True),
        (", not 6", False),
        (" but check the units", False),
        (" as 2+3=5", False),
        (" - as expected", False),
        (", which is not a square", False),
        (" months", False),
    ],
)
def test_is_taken_back(after, back):
    assert is_taken_back(after) is back
