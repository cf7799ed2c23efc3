"""The embedded task with a level for each question."""

from __future__ import annotations

from typing import Any

from grpo_lightning.data import RunningTotals


class ByChanges(RunningTotals):
    """Running totals whose ``changes``, 3 to 5, are their ``level`` too, so that accuracy is told for each."""

    def rows(self) -> list[dict[str, Any]]:
        return [{**row, "level": row["changes"]} for row in super().rows()]
