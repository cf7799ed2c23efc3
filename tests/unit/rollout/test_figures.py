"""Figures that reward functions log, over ranks."""

from __future__ import annotations

from typing import Any

import pytest

from grpo_lightning.rollout.figures import mean_over_ranks, sum_over_ranks


def other_rank(monkeypatch: pytest.MonkeyPatch, there: dict[str, Any]) -> None:
    """Brings what it has of its own."""
    monkeypatch.setattr("grpo_lightning.ranks.gather_objects", lambda items: [*items, there])


def test_a_mean_counts_each_number_once_on_whichever_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    other_rank(monkeypatch, {"both": (0.0, 1), "there only": (2.0, 2), "none": (0.0, 0)})
    here = {"both": [1.0, 1.0, 1.0], "here only": [5.0, 6.0], "none": []}
    assert mean_over_ranks(here) == {"both": 0.75, "here only": 5.5, "there only": 1.0}


def test_counts_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    other_rank(monkeypatch, {"both": 4.0, "there only": 1.0})
    assert sum_over_ranks({"both": 2.0, "here only": 5.0}) == {"both": 6.0, "here only": 5.0, "there only": 1.0}
