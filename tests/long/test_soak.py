"""A thousand rollouts of the tiny model: memory, open files, processes and time stay where they are.

``ROLLOUTS=100`` in the environment makes it a shorter one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_lightning.data.tiny_model import build_tiny_model
from tests.integration.command_line import fit
from tests.integration.soak import faults, pulses, watched

pytestmark = pytest.mark.integration

ROLLOUTS = int(os.environ.get("ROLLOUTS", 1000))


def test_a_thousand_rollouts_leave_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], record_property: Callable[[str, object], None]
) -> None:
    tiny = build_tiny_model(str(tmp_path / "tiny"), hidden=32, layers=2, mlp=64)
    fit(capsys, watched(tiny, tmp_path / "run", rollouts=ROLLOUTS))
    seen, warm_up = pulses(tmp_path / "run"), min(100, ROLLOUTS // 3)
    record_property("rollouts", len(seen))
    record_property("after warm-up", seen[warm_up])
    record_property("last", seen[-1])
    assert len(seen) == ROLLOUTS
    assert faults(seen, warm_up=warm_up, memory=0.02, drift=0.05) == []
