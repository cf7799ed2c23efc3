"""GRPO (Group Relative Policy Optimization) for language models on PyTorch Lightning.

The names below are imported on first use, so that ``import grpo_lightning.functional`` or ``.rewards`` stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grpo_lightning.callbacks.rollout import RolloutCallback
    from grpo_lightning.data.datamodule import PromptDataModule
    from grpo_lightning.module import GRPOModule
    from grpo_lightning.ppo import PPOModule
    from grpo_lightning.sft import SFTModule

__version__ = "0.1.0"
__all__ = ["GRPOModule", "PPOModule", "PromptDataModule", "RolloutCallback", "SFTModule"]

_WHERE = {
    "GRPOModule": "grpo_lightning.module",
    "PPOModule": "grpo_lightning.ppo",
    "PromptDataModule": "grpo_lightning.data.datamodule",
    "RolloutCallback": "grpo_lightning.callbacks.rollout",
    "SFTModule": "grpo_lightning.sft",
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)
