"""Samplers: what turns prompts into completions."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from grpo_lightning.engines.base import ModelSpec, RolloutEngine, Sampling
from grpo_lightning.errors import UserError

if TYPE_CHECKING:
    from grpo_lightning.engines.transformers import TransformersEngine
    from grpo_lightning.engines.vllm import VLLMEngine

__all__ = ["ModelSpec", "RolloutEngine", "Sampling", "TransformersEngine", "VLLMEngine", "default_engine"]

log = logging.getLogger(__name__)


def __getattr__(name: str) -> Any:
    """Import an engine only when it is asked for."""
    if name == "TransformersEngine":
        from grpo_lightning.engines.transformers import TransformersEngine

        return TransformersEngine
    if name == "VLLMEngine":
        from grpo_lightning.engines.vllm import VLLMEngine

        return VLLMEngine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def default_engine() -> RolloutEngine:
    """vLLM where it can run, transformers elsewhere (macOS, no vLLM installed): the log says which and why."""
    from grpo_lightning.engines.transformers import TransformersEngine
    from grpo_lightning.engines.vllm import VLLMEngine

    engine = VLLMEngine()
    try:
        engine.check()
    except UserError as error:
        log.warning("Sampling with transformers, which is slower than vLLM: %s", error)
        return TransformersEngine()
    return engine
