"""Figures that reward functions log, over ranks."""

from __future__ import annotations

import pytest

from grpo_lightning.rollout.figures import mean_over_ranks, sum_over_ranks


@pytest.fixture
def other_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brings figures of its own."""
    there = {"both": 4.0, "there only": 1.0}
    monkeypatch.setattr("grpo_lightning.ranks.gather_objects", lambda items: [*items, there])


@pytest.mark.usefixtures("other_rank")
def test_a_mean_is_over_the_ranks_that_have_it() -> None:
    assert mean_over_ranks({"both": 2.0, "here only": 5.0}) == {"both": 3.0, "here only": 5.0, "there only": 1.0}


@pytest.mark.usefixtures("other_rank")
def test_counts_add_up() -> None:
    assert sum_over_ranks({"both": 2.0, "here only": 5.0}) == {"both": 6.0, "here only": 5.0, "there only": 1.0}
