"""No completion crashes what handles it, or makes it large (``make long``: 20,000 of them)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.fuzzing import hostile_completions, survive

pytestmark = pytest.mark.integration


def test_five_hundred_hostile_completions(tmp_path: Path) -> None:
    survive(hostile_completions(500, seed=0), tmp_path)
