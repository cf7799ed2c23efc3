"""20,000 random and hostile completions through templates, rewards, tables and reports, 1,000 to a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.fuzzing import hostile_completions, survive

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("seed", range(1, 21))
def test_a_thousand_hostile_completions(tmp_path: Path, record_property: Any, seed: int) -> None:
    survive(hostile_completions(1_000, seed=seed), tmp_path)
    record_property("completions", 1_000)
