"""Rewards, objectives and samplers that differ from rank to rank; tests name them by dotted path."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import lightning as L
import torch
from torch import Tensor

from grpo_lightning import ranks
from grpo_lightning.engines import TransformersEngine
from grpo_lightning.engines.base import Sampling
from grpo_lightning.objectives import ClippedObjective, TokenLoss
from grpo_lightning.rewards import inline
from grpo_lightning.types import Completion, RolloutBatch
from tests.integration.reward_functions import share_of_digits

BROKEN_STEP = 4


def listed(
    completions: list[Any], scores: list[list[float | None]], log_metric: Callable[..., None], **_: Any
) -> list[float | None]:
    """Each row of the data has the scores of its group, in order."""
    given = [row[i % len(row)] for i, row in enumerate(scores)]
    log_metric("logged", given)
    return given


def by_steps(completions: list[Any], completion_ids: list[list[int]], scores: list[Any], **_: Any) -> list[Any]:
    """A step at every second token, for the rows whose first score is known: on one of the ranks there may be none."""
    texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
    return [
        [(float(text[end : end + 1].isdigit()), end) for end in range(0, len(ids), 2)] if row[0] == 1 else None
        for text, ids, row in zip(texts, completion_ids, scores, strict=True)
    ]


@inline  # a worker process is of no rank
def uneven(completions: list[Any], trainer_state: SimpleNamespace, **_: Any) -> list[float | None]:
    """In turn: both ranks learn; one has no signal; one has no valid row; nobody has a signal; one of a few rows."""
    case, other = divmod(trainer_state.global_step, 2)
    case, here = case % 5, ranks.rank() == other
    if case == 0 or not here:
        return [0.0] * len(completions) if case == 3 else list(share_of_digits(completions))
    if case == 1:
        return [1.0] * len(completions)
    if case == 2:
        return [None] * len(completions)
    if case == 3:
        return [0.0] * len(completions)
    return [float(i == 0) for i in range(len(completions))]


class BrokenOnce(ClippedObjective):
    """The loss of the second rank is NaN in one step."""

    calls = 0

    def token_loss(self, logprobs: Tensor, rollout: RolloutBatch) -> TokenLoss:
        loss = super().token_loss(logprobs, rollout)
        broken = ranks.rank() == 1 and self.step == BROKEN_STEP
        return loss._replace(values=loss.values * torch.nan) if broken else loss

    step = -1


class SameWeights(L.Callback):
    """Ranks must hold the same policy after every rollout, by what they score; and tells ``BrokenOnce`` the step."""

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        pl_module.objective.step = trainer.global_step

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        total = sum(
            float(getattr(p.detach(), "full_tensor", p.detach)().double().abs().sum())
            for p in pl_module.policy.parameters()
        )
        totals = ranks.gather_objects([total])
        assert totals == [totals[0]] * len(totals), f"step {trainer.global_step}: {totals}"


class StaleOnSecondRank(TransformersEngine):
    """Keeps the weights of its first sync on rank 1."""

    def load_weights(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        copies = [(name, tensor.clone()) for name, tensor in tensors]  # a gathering of all ranks: always walk it
        if not self._ready or ranks.rank() == 0:
            super().load_weights(copies)


class Silent(TransformersEngine):
    """Every fourth rollout has no tokens at all on the first rank, the one after it on the second, then on both."""

    calls = 0

    def generate(
        self, prompts: list[list[int]], sampling: Sampling, *, group_size: int, seeds: list[int]
    ) -> list[list[Completion]]:
        groups = super().generate(prompts, sampling, group_size=group_size, seeds=seeds)
        case = self.calls % 4
        self.calls += 1
        if case == 3 or case == ranks.rank() + 1:
            return [[Completion(token_ids=[], logprobs=[], finished=False) for _ in group] for group in groups]
        return groups
