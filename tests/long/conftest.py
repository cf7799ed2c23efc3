"""What `make long` has found goes into experiments/endurance/results.json, a record to be committed."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from experiments import machine
from grpo_lightning.data.tiny_model import build_tiny_model

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "experiments" / "endurance" / "results.json"


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The integration tests' model."""
    return build_tiny_model(str(tmp_path_factory.mktemp("models") / "tiny"), hidden=32, layers=2, mlp=64)


@pytest.fixture(autouse=True)
def _what_is_tested(request: pytest.FixtureRequest, record_property: Any) -> None:
    record_property("about", (request.module.__doc__ or "").strip().splitlines()[0])


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note a test that has run; ``record_property`` says what it found."""
    if report.when != "call" and not report.failed:
        return
    found = json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {}
    properties = dict(report.user_properties)
    found[report.nodeid.removeprefix("tests/long/")] = {
        "outcome": report.outcome,
        "seconds": round(report.duration, 1),
        "finished": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "machine": machine.machine(),
        "commit": machine.commit(ROOT),
        "versions": machine.versions(),
        **properties,
    }
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n", "utf-8")
