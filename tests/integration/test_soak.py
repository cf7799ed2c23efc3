"""A run neither swells nor slows down; ``make long`` looks at a thousand rollouts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.command_line import fit
from tests.integration.soak import Pulse, faults, pulses, watched

pytestmark = pytest.mark.integration


def test_fifty_rollouts_leave_nothing_behind(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The bound on time is for a machine that does other things too."""
    fit(capsys, watched(tiny, tmp_path / "run", rollouts=50))
    seen = pulses(tmp_path / "run")
    assert len(seen) == 50
    assert faults(seen, warm_up=15, memory=0.02, drift=0.4) == []


def steady(**changes: float) -> list[Pulse]:
    """Ten rollouts in which the last ones differ by these shares or numbers."""
    pulse = {"memory": 100.0, "files": 7, "processes": 1, "seconds": 0.1}
    return [dict(pulse)] * 7 + [{name: value + changes.get(name, 0) for name, value in pulse.items()}] * 3


def test_growth_is_found() -> None:
    bounds = {"warm_up": 0, "memory": 0.02, "drift": 0.05}
    assert faults(steady(memory=1.9, seconds=0.0049), **bounds) == []
    assert faults(steady(memory=2.1), **bounds) == ["memory grew by 2.1% (bound 2%)"]
    assert faults(steady(seconds=0.0051), **bounds) == ["seconds grew by 5.1% (bound 5%)"]
    assert faults(steady(files=1, processes=2), **bounds) == [
        "files: 7 before, 8 in the end", "processes: 1 before, 3 in the end",
    ]  # fmt: skip
    grown = [{"memory": 1.0, "files": 1.0, "processes": 1.0, "seconds": 1.0}] * 5 + steady()
    assert faults(grown, **(bounds | {"warm_up": 5})) == []
