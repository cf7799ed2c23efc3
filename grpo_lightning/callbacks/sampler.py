"""The policy's sampler: an engine that is started once and holds the current weights whenever it generates."""

from __future__ import annotations

import logging
import time
from typing import Any

import lightning as L
import torch

from grpo_lightning.engines import default_engine
from grpo_lightning.engines.base import ModelSpec, RolloutEngine
from grpo_lightning.engines.failures import ReportedEngine
from grpo_lightning.errors import UserError
from grpo_lightning.models.loading import context_length
from grpo_lightning.models.weights import named_weights
from grpo_lightning.policy_module import PolicyModule

log = logging.getLogger(__name__)


class PolicySampler:
    """Starts an engine on first use, wakes it and sends it the weights if they have changed since.

    What is remembered of the weights, from the trainer down to the engine:

    - ``PolicyModule.weights_version`` counts their changes: steps that moved something, checkpoints that were loaded.
    - ``_synced_version``, here, is the one that the engine got last; None before the first, after a sleep that loses
      them (``weights_lost_in_sleep``) and once the engine is closed. If the two differ, ``ready`` sends the weights.
    - ``_ready``, in an engine: it holds a whole set of them. A guard alone: false during a load, so that nothing is
      sampled after one that broke off.
    - ``_weights_asleep`` and ``_cache_asleep``, in vLLM's: which part of its memory it has given back. The weights wake
      before they are sent, the cache only with the first request, when what sending took is free again.

    Args:
        engine: None takes vLLM if it is installed, else transformers.
    """

    def __init__(self, engine: RolloutEngine | None) -> None:
        self.engine = engine
        self.longest_completion = 0
        """Of what will be generated, training and evaluation together, in tokens; see ``allow_length``."""
        self._started = False
        self._reported: Any = None
        """The engine, once it is started; what it raises is told of as the sampler's."""
        self._synced_version: int | None = None

    def allow_length(self, trainer: L.Trainer, pl_module: PolicyModule, completion: int, *, flag: str) -> None:
        """Have the engine made for completions of that many tokens; refuse what it or the model cannot hold."""
        prompt, limit = trainer.datamodule.max_prompt_length, context_length(pl_module.model_config)
        if limit is not None and prompt + completion > limit:
            raise UserError(
                f"--data.max_prompt_length {prompt} plus {flag} {completion} is beyond the {limit} tokens that "
                f"{pl_module.policy_path} holds; lower one of them"
            )
        self.longest_completion = max(self.longest_completion, completion)
        if self.engine is None:
            self.engine = default_engine()
        self.engine.check(max_length=prompt + self.longest_completion)

    def ready(self, trainer: L.Trainer, pl_module: PolicyModule) -> RolloutEngine:
        """The engine, started, awake and holding the policy's current weights; call it before every generation."""
        assert self.engine is not None and pl_module.policy is not None
        if not self._started:
            self._start(trainer, pl_module)
        self._reported.wake()
        if self._synced_version != pl_module.weights_version:
            self._reported.load_weights(named_weights(pl_module.policy))
            self._synced_version = pl_module.weights_version
        return self._reported

    def _start(self, trainer: L.Trainer, pl_module: PolicyModule) -> None:
        assert self.engine is not None
        start = time.perf_counter()
        low_precision = str(trainer.precision).startswith("bf16") or pl_module.dtype_name == "bfloat16"
        spec = ModelSpec(
            name_or_path=pl_module.policy_path,
            eos_token_ids=pl_module.eos_token_ids,
            pad_token_id=pl_module.tokenizer.pad_token_id,
            max_length=trainer.datamodule.max_prompt_length + self.longest_completion,
            dtype=torch.bfloat16 if low_precision else torch.float32,
            device=pl_module.device,
            attn_implementation=pl_module.attn_implementation,
            trust_remote_code=pl_module.trust_remote_code,
        )
        self._reported = ReportedEngine(self.engine)
        self._reported.start(spec)
        self._started = True
        log.info(
            "%s ready in %.0f s, in %s", type(self.engine).__name__, time.perf_counter() - start,
            str(spec.dtype).removeprefix("torch."),
        )  # fmt: skip

    def rest(self) -> None:
        """Let the engine give its memory back until the next generation."""
        assert self.engine is not None
        self._reported.sleep()
        if self.engine.weights_lost_in_sleep:
            self._synced_version = None

    def close(self) -> None:
        """Stop the engine."""
        if self.engine is not None and self._started:
            self.engine.close()
            self._started = False
            self._synced_version = None
