from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nan

from grpo_lightning.data.curriculum import Curriculum, Measurement, Ordered
from grpo_lightning.types import Prompt


def prompts(*values: Any, column: str = "level") -> list[Prompt]:
    """One prompt a value, rows 10, 11, 12, ..."""
    return [
        Prompt(token_ids=[1], text=f"q{n}", columns={"question": "q", column: value}, source="listed", row=10 + n)
        for n, value in enumerate(values)
    ]


class LastFirst(Ordered):
    """A user's own."""

    def order(self, epoch: int) -> list[int]:
        return [(number + epoch) % len(self.prompts) for number in reversed(range(len(self.prompts)))]


class Remembers(Curriculum):
    def choose(self, *, epoch: int, start: int) -> list[int]:
        return [0]

    def record(self, measurements: Any) -> dict[str, float]:
        self.measurements = list(measurements)
        return {"figure": 1.0}


def test_an_order_is_cut_into_rollouts() -> None:
    own = LastFirst()
    own.prepare(prompts(*"abcde"))
    own.begin(batch_size=2, seed=0)
    assert [own.choose(epoch=0, start=start) for start in (0, 2)] == [[4, 3], [2, 1]]
    assert own.choose(epoch=1, start=2) == [3, 2]
    assert own.choose(epoch=0, start=2) == [2, 1]
    assert own.settings() == {"curriculum": "LastFirst", "batch_size": 2}
    own.prepare(prompts(*"abc"))
    own.begin(batch_size=2, seed=0)
    assert own.choose(epoch=0, start=0) == [2, 1], "the order is that of the prompts it has now"


def test_measurements_know_their_prompt_and_leave_out_what_has_no_reward() -> None:
    own = Remembers()
    asked = prompts(*"abcd")
    own.prepare(asked)
    rewards = torch.tensor([[1.0, nan], [nan, nan]], dtype=torch.float64)
    terms = {"a": torch.tensor([[2.0, 3.0], [nan, 4.0]])}
    assert own.measure([asked[3], asked[1]], rewards, terms) == {"figure": 1.0}
    assert own.measurements == [
        Measurement(number=1, rewards=[], terms={"a": [4.0]}),
        Measurement(number=3, rewards=[1.0], terms={"a": [2.0, 3.0]}),
    ]


def test_all_ranks_learn_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Remembers()
    asked = prompts(*"ab")
    own.prepare(asked)
    other = Measurement(number=0, rewards=[0.5], terms={})
    monkeypatch.setattr("grpo_lightning.ranks.gather_objects", lambda items: [*items, other])
    own.measure([asked[1]], torch.tensor([[1.0]]), {})
    assert own.measurements == [other, Measurement(number=1, rewards=[1.0], terms={})]


def test_without_measurements_there_is_nothing_to_save() -> None:
    own = LastFirst()
    own.prepare(prompts("a"))
    assert own.measure(own.prompts, torch.ones(1, 2), {}) == {}
    assert own.state_dict() == own.to_save() == {}
    own.load_state_dict({})


def test_what_was_learned_is_kept_and_with_other_data_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    class Counts(Remembers):
        def state_dict(self) -> dict[str, Any]:
            return {"count": 3}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.count = state["count"]

    class Other(Counts):
        pass

    saved = Counts()
    saved.prepare(prompts(*"ab"))
    for own, asked, kept in ((Counts(), "cd", True), (Counts(), "abc", False), (Other(), "ab", False)):
        caplog.clear()
        own.prepare(prompts(*asked))
        with caplog.at_level(logging.WARNING):
            own.restore(saved.to_save())
        assert getattr(own, "count", 0) == (3 if kept else 0)
        assert ("Counts of 2 prompts, this run's is" in caplog.text) is not kept
