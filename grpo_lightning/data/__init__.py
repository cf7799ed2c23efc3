"""Questions: where they come from, how they are put to the model, and how they are served.

The names below are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grpo_lightning.data.arithmetic import RunningTotals
    from grpo_lightning.data.competition_math import CompetitionMath
    from grpo_lightning.data.curriculum import ByColumn, ByPassRate, Curriculum
    from grpo_lightning.data.datamodule import PromptDataModule
    from grpo_lightning.data.gsm8k import GSM8K
    from grpo_lightning.data.hub import HubDataset
    from grpo_lightning.data.jsonl import JsonLines
    from grpo_lightning.data.source import PromptSource
    from grpo_lightning.data.templates import PromptTemplate

__all__ = [
    "GSM8K",
    "ByColumn",
    "ByPassRate",
    "CompetitionMath",
    "Curriculum",
    "HubDataset",
    "JsonLines",
    "PromptDataModule",
    "PromptSource",
    "PromptTemplate",
    "RunningTotals",
]

_WHERE = {
    "ByColumn": "curriculum",
    "ByPassRate": "curriculum",
    "Curriculum": "curriculum",
    "GSM8K": "gsm8k",
    "CompetitionMath": "competition_math",
    "HubDataset": "hub",
    "JsonLines": "jsonl",
    "PromptDataModule": "datamodule",
    "PromptSource": "source",
    "PromptTemplate": "templates",
    "RunningTotals": "arithmetic",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
