"""What every sampler can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from grpo_lightning.types import Completion


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How completions are drawn. Nothing else has a say: a model folder's ``generation_config`` is ignored."""

    max_completion_length: int
    """Longest completion, in tokens, the end-of-sequence token included."""
    temperature: float = 1.0
    """Logits are divided by it; 0 is greedy."""
    top_p: float = 1.0
    """Nucleus share; 1 keeps every token."""
    top_k: int = 0
    """Tokens kept at each position; 0 keeps all."""
    min_p: float = 0.0
    """Least probability as a share of the likeliest token's; 0 keeps all."""

    @property
    def truncated(self) -> bool:
        """True if tokens are cut off: what is sampled is then not quite the model's distribution."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """What an engine must know of the policy before it can start."""

    name_or_path: str
    """Hugging Face id or folder that holds the configuration (weights are sent by ``load_weights``)."""
    eos_token_ids: tuple[int, ...]
    """Any of these ends a completion."""
    pad_token_id: int
    max_length: int
    """Longest prompt plus completion, in tokens."""
    dtype: torch.dtype = torch.float32
    """What the sampler computes in."""
    device: torch.device = torch.device("cpu")
    attn_implementation: str = "sdpa"
    trust_remote_code: bool = False


class RolloutEngine(ABC):
    """A sampler that is fed with weights and token ids and returns token ids.

    Life: ``start`` once, then any number of ``load_weights`` and ``generate``, with ``sleep`` and ``wake`` in between,
    then ``close``. Constructors only keep settings and must be cheap: the model is built in ``start``.
    """

    def check(self, *, max_length: int = 0) -> None:  # noqa: B027  (most engines have nothing to check)
        """Raise ``UserError`` if this engine cannot run here; called before any long work.

        Args:
            max_length: longest prompt plus completion that it will be asked for, in tokens.
        """

    @abstractmethod
    def start(self, model: ModelSpec) -> None:
        """Build the sampler. Its weights are undefined until the first ``load_weights``."""

    @abstractmethod
    def load_weights(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Take the policy's current weights, and forget every cached key and value that older weights made.

        Args:
            tensors: (name, full tensor) under the Hugging Face model's own names, tied tensors once.

        Raises:
            RuntimeError: if a name is missing or unknown; nothing is ever skipped.
        """

    @abstractmethod
    def generate(
        self, prompts: list[list[int]], sampling: Sampling, *, group_size: int, seeds: list[int]
    ) -> list[list[Completion]]:
        """Draw ``group_size`` completions of each prompt.

        Args:
            prompts: token ids, one list per prompt.
            sampling: how to draw.
            group_size: completions of each prompt.
            seeds: one per prompt; child ``i`` of a prompt draws with ``seed + i``, so that the same seeds give the
                same samples however the prompts are spread over batches and ranks.

        Returns:
            ``[P][G]`` completions with token ids and log-probabilities; ``text`` is left to the caller.
        """

    def sleep(self) -> None:  # noqa: B027
        """Give memory back between rollouts, where the engine can."""

    def wake(self) -> None:  # noqa: B027
        """Undo ``sleep``; weights must be loaded again after a deep sleep."""

    @property
    def weights_lost_in_sleep(self) -> bool:
        """True if ``sleep`` throws the weights away, so that they must be sent after ``wake``."""
        return False

    @abstractmethod
    def close(self) -> None:
        """Free everything. The last thing of a run: it may take the process group down with it."""
