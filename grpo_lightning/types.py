"""The data that flows from prompts to the loss.

Legend, the same in every file:

    P  prompts per rollout      G  group size (completions of one prompt)      B  sequences in a batch of tensors
    S  tokens of a whole sequence (prompt and completion)      T  tokens of a completion      V  vocabulary size

``completion_mask`` is 1 on a trained token and 0 elsewhere, everywhere. Tensors ``[B, T]`` are indexed by completion
token: column ``t`` belongs to the ``t``-th token after the prompt, the first end-of-sequence token included.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, Self, TypeVar

import torch
from torch import Tensor

Message = dict[str, str]
"""One chat message: ``{"role": "user", "content": "..."}``."""

StepScores = list[tuple[float, int]]
"""Scores of a completion's steps, each with the index of the step's last token in ``completion_ids``."""

RewardFunction = Callable[..., "list[float | None] | list[StepScores | None]"]
"""A reward in TRL's form: keywords ``prompts``, ``completions``, ``completion_ids`` and the data columns (each a list
with one entry per completion) to one score per completion, or to the scores of its steps; None means that the reward
does not apply to the row."""


@dataclass(kw_only=True)
class Prompt:
    """One question, ready for the sampler."""

    token_ids: list[int]
    """What the sampler sees; never decoded and encoded again."""
    text: str
    """The rendered prompt that ``token_ids`` encode."""
    messages: list[Message] | None = None
    """The chat messages it was rendered from; None for a plain-text prompt."""
    columns: dict[str, Any] = dataclasses.field(default_factory=dict)
    """The data row: ``question``, ``answer`` and whatever else the source has. Rewards get these as keywords."""
    prefill: str = ""
    """Answer text that the template has already opened (``<think>\\n``); rewards see it in front of the completion."""
    source: str = ""
    """Name of the data source, ``"gsm8k"``."""
    row: int = 0
    """Row in the data source."""
    valid: bool = True
    """False for a copy that only fills up a rank's evaluation batch: no metric counts it."""


@dataclass(kw_only=True)
class Completion:
    """One sampled answer."""

    token_ids: list[int]
    """Up to and with the first end-of-sequence token; without one if the length limit cut it."""
    logprobs: list[float]
    """Log-probability of each token under the *sampled* distribution (temperature and truncation applied)."""
    finished: bool
    """True if any end-of-sequence token ended it, False if it was cut."""
    text: str = ""
    """Decoded, without the end-of-sequence token; every other special token stays visible."""


@dataclass(kw_only=True)
class SequenceBatch:
    """Sequences to train on: ``[prompt][completion][padding]``, padded on the right only."""

    input_ids: Tensor
    """Token ids, ``[B, S]``."""
    sequence_lengths: Tensor
    """Tokens of prompt and completion together, ``[B]``."""
    prompt_lengths: Tensor
    """Tokens of the prompt, ``[B]``."""
    completion_mask: Tensor
    """1 on a trained token, ``[B, T]``, float."""
    loss_weights: Tensor | None = None
    """What each token counts in the loss; made once for a whole window (``functional.reduction``), ``[B, T]``."""

    def __len__(self) -> int:
        return self.input_ids.shape[0]

    @property
    def attention_mask(self) -> Tensor:
        """1 on prompt and completion tokens, 0 on padding, ``[B, S]``."""
        positions = torch.arange(self.input_ids.shape[1], device=self.input_ids.device)
        return (positions < self.sequence_lengths[:, None]).long()

    @property
    def counted(self) -> Tensor:
        """1 on a token that counts in the loss; 0 also in rows that only keep a rank in step, float, ``[B, T]``."""
        assert self.loss_weights is not None
        return (self.loss_weights != 0).float()

    @property
    def completion_positions(self) -> Tensor:
        """Where each completion token stands in its sequence, clamped to the last column on padding, ``[B, T]``."""
        offsets = torch.arange(self.completion_mask.shape[1], device=self.input_ids.device)
        return (self.prompt_lengths[:, None] + offsets).clamp(max=self.input_ids.shape[1] - 1)

    @property
    def completion_ids(self) -> Tensor:
        """Token ids of the completions (arbitrary where ``completion_mask`` is 0), ``[B, T]``."""
        return self.input_ids.gather(1, self.completion_positions)

    @property
    def new_prompts(self) -> Tensor:
        """False in a row with the same prompt as the row before it, ``[B]``."""
        lengths, ids = self.prompt_lengths, self.input_ids
        inside = torch.arange(ids.shape[1], device=ids.device) < lengths[1:, None]
        same = ((ids[1:] == ids[:-1]) | ~inside).all(dim=1) & (lengths[1:] == lengths[:-1])
        return torch.cat([same.new_ones(1), ~same])

    def rows(self, index: Tensor) -> Self:
        """The given rows, trimmed to their own longest sequence and completion.

        Args:
            index: row numbers, ``[b]``.
        """
        sequence = int(self.sequence_lengths[index].max())
        completion = max(int((self.sequence_lengths - self.prompt_lengths)[index].max()), 1)
        picked: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None:
                value = value[index]
                if value.dim() == 2:
                    value = value[:, : sequence if field.name == "input_ids" else completion]
            picked[field.name] = value
        return dataclasses.replace(self, **picked)

    def to(self, device: torch.device | str) -> Self:
        """Every tensor on ``device``."""
        tensors = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        moved = {name: value.to(device) for name, value in tensors.items() if value is not None}
        return dataclasses.replace(self, **moved)


@dataclass(kw_only=True)
class RolloutBatch(SequenceBatch):
    """Scored completions: what the objective sees."""

    advantages: Tensor
    """How much better than its group a completion was, ``[B, 1]``, or per token, ``[B, T]``."""
    completion_numbers: Tensor | None = None
    """Which of this rank's completions a row is, counted prompt by prompt, ``[B]``."""
    old_logprobs: Tensor | None = None
    """Under the policy that starts this rollout's updates; None where that is the current policy itself, ``[B, T]``."""
    ref_logprobs: Tensor | None = None
    """Under the reference policy; None if the objective has no KL term, ``[B, T]``."""
    sampling_logprobs: Tensor | None = None
    """As the sampler reported them, ``[B, T]``."""
    entropy_mask: Tensor | None = None
    """1 on the tokens whose entropy is high enough to be learned from; None where all are, ``[B, T]``."""
    length_quartile: Tensor | None = None
    """Quarter of all ranks' completions, by length, that a row belongs to: 0 for the shortest, ``[B]``."""
    values: Tensor | None = None
    """The critic's value of each position before these updates; None without a critic, ``[B, T]``."""
    returns: Tensor | None = None
    """What the critic's values are to become, NaN where that is not known; None without a critic, ``[B, T]``."""


Layout = Literal["padded", "packed", "shared"]
"""How a model is given the sequences of a micro-batch: a row each, padded; one behind the other; or so that those with
the same prompt have it once, too."""

BatchT = TypeVar("BatchT", bound=SequenceBatch)


@dataclass(kw_only=True)
class Window(Generic[BatchT]):
    """The sequences of one optimizer step, cut into micro-batches that fit in memory."""

    micro_batches: list[BatchT]
    """Each is one forward and backward; their ``loss_weights`` together span the whole window over all ranks."""
    tokens: float
    """Trained tokens of the window over all ranks, dropped rows included."""


class ScoredPrompts(NamedTuple):
    """Prompts and what their completions earned."""

    prompts: list[Prompt]
    completions: list[list[Completion]]
    """``[P][G]``."""
    rewards: Tensor
    """Total rewards; NaN where none applies, ``[P, G]``."""
    terms: dict[str, Tensor]
    """Each reward function's own scores, ``[P, G]``."""


@dataclass(kw_only=True)
class Rollout:
    """Everything one rollout produced; ``training_step`` learns from ``windows``."""

    prompts: list[Prompt]
    """This rank's prompts, ``[P]``."""
    positions: list[int]
    """Number of each prompt in the rollout's global batch."""
    completions: list[list[Completion]]
    """This rank's groups, ``[P][G]``."""
    rewards: Tensor
    """Total reward of each completion of this rank; NaN where no reward applies, ``[P, G]``."""
    reward_terms: dict[str, Tensor]
    """Each reward function's own scores, unweighted; the mean over its steps of a reward per step, ``[P, G]``."""
    sampled: ScoredPrompts
    """All that this rank sampled and scored; more than the above where dynamic sampling passed some of it over."""
    advantages: Tensor
    """Of this rank's completions, ``[P, G]``; the mean over its tokens where they differ by token."""
    windows: list[Window[RolloutBatch]]
    """One optimizer step each, in prompt order."""
    passes: int
    """How often the windows are gone through (the paper's mu)."""
    temperature: float
    """The completions were sampled at it, so they are scored at it."""
    truncated: bool = False
    """True if top_p, top_k or min_p cut the sampled distribution: it is then not quite the policy's."""
    metrics: dict[str, float]
    """Figures over all ranks, in TRL's names."""
    logged_columns: dict[str, list[Any]] = dataclasses.field(default_factory=dict)
    """Columns that reward functions gave to ``log_extra``, one entry per completion."""


class PromptBatch:
    """The prompts of one rollout: what the data loader yields and ``training_step`` gets.

    Deliberately not a dataclass: Lightning walks dataclasses entry by entry when it moves a batch to a device, and
    would visit every token id of every prompt.
    """

    def __init__(self, prompts: list[Prompt], positions: list[int] | None = None) -> None:
        self.prompts = prompts
        self.positions = list(range(len(prompts))) if positions is None else positions
        """Number of each prompt in the rollout's global batch, or in the whole evaluation set: the same prompt has the
        same number on any number of ranks."""
        self.rollout: Rollout | None = None
        """Attached by the rollout callback before ``training_step``."""

    def __len__(self) -> int:
        return len(self.prompts)
