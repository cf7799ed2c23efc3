"""Every row of the table of answers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "unit" / "rewards" / "answers"))

from table import table_cases, wrong_verdicts

pytestmark = pytest.mark.integration


def test_the_whole_table():
    cases = table_cases()
    assert len(cases) > 5_000
    assert wrong_verdicts(cases) == []
