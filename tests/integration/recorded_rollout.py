"""One recorded rollout that any strategy, split and engine replays under a real Trainer.

The rollout is made once from fixed completions; a small callback attaches it to the batch as the rollout callback does,
and ``training_step`` learns from it. On several ranks each has the prompts that the product would deal it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from grpo_lightning import GRPOModule, PPOModule, ranks
from grpo_lightning.functional.reduction import token_mean
from grpo_lightning.models.adapters import whole
from grpo_lightning.objectives import ClippedObjective
from grpo_lightning.rollout.windows import cut_windows, pad_rows
from grpo_lightning.types import PromptBatch, Rollout, RolloutBatch, ScoredPrompts, Window
from tests.unit.models.tiny import VOCABULARY

ROWS, GROUP = 16, 4
LENGTHS = [1, 9, 4, 4, 2, 12, 3, 7, 5, 5, 5, 5, 11, 1, 2, 6]
ADVANTAGES = [1.5, -0.5, -0.5, -0.5, 0.0, 0.0, 0.0, 0.0, 0.87, 0.87, -0.87, -0.87, 0.5, 0.5, 0.5, -1.5]
"""The second prompt's group is flat, so its rows are left out where the objective allows it."""


def recorded() -> RolloutBatch:
    """Four prompts of four completions each, of ragged lengths; what the sixth is worth is not known to a critic."""
    generator = torch.Generator().manual_seed(5)

    def tokens(count: int) -> list[int]:
        return torch.randint(2, VOCABULARY, (count,), generator=generator).tolist()

    prompts = [tokens(3 + 2 * prompt) for prompt in range(ROWS // GROUP)]
    padded = pad_rows(
        [prompts[row // GROUP] for row in range(ROWS)], [[*tokens(n - 1), 1] for n in LENGTHS], pad_token_id=0
    )
    return RolloutBatch(
        **vars(padded),
        advantages=torch.tensor(ADVANTAGES)[:, None],
        returns=torch.where(torch.arange(ROWS)[:, None] == 5, torch.nan, torch.rand(ROWS, 12, generator=generator)),
        sampling_logprobs=torch.zeros_like(padded.completion_mask),
    )


Split = Callable[[RolloutBatch, dict[str, Any]], list[Window[RolloutBatch]]]


def by_rows(count: int) -> Split:
    """Micro-batches of ``count`` rows."""

    def split(batch: RolloutBatch, options: dict[str, Any]) -> list[Window[RolloutBatch]]:
        windows = cut_windows(batch, micro_batch_tokens=10**9, **options)
        for window in windows:
            for everything in window.micro_batches:  # one, or none where every row was left out
                parts = torch.arange(len(everything)).split(count)
                window.micro_batches = [everything.rows(part) for part in parts]
        return windows

    return split


def by_tokens(bound: int) -> Split:
    """Micro-batches as the product cuts them."""
    return lambda batch, options: cut_windows(batch, micro_batch_tokens=bound, **options)


class Attach(L.Callback):
    """Puts the recorded rollout on each batch, scored by the policy as it is then."""

    def __init__(self, batch: RolloutBatch, *, split: Split, options: dict[str, Any], passes: int) -> None:
        self.batch, self.split, self.options, self.passes = batch, split, options, passes
        self.old: list[list[Tensor]] = []

    def setup(self, trainer: L.Trainer, pl_module: GRPOModule, stage: str) -> None:
        pl_module.steps_per_batch = self.passes * self.options["updates"]
        if ranks.world_size() > 1:  # prompts are dealt to the ranks in turn
            mine = torch.arange(ROWS)[torch.arange(ROWS) // GROUP % ranks.world_size() == ranks.rank()]
            self.batch = self.batch.rows(mine)
            keep = self.options["keep"]
            self.options = self.options | {"keep": None if keep is None else keep[mine]}

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
        windows = self.split(copy.deepcopy(self.batch), self.options | {"layout": pl_module.layout})
        for window in windows:
            window.micro_batches = [micro_batch.to(pl_module.device) for micro_batch in window.micro_batches]
        for micro_batch in (m for window in windows for m in window.micro_batches):
            if self.passes * self.options["updates"] > 1:
                micro_batch.old_logprobs = pl_module.score(micro_batch, temperature=0.9).logprobs
            if pl_module.needs_reference:
                micro_batch.ref_logprobs = pl_module.score(micro_batch, temperature=0.9, reference=True).logprobs
            if isinstance(pl_module, PPOModule):
                micro_batch.values = pl_module.score_values(micro_batch)
        batch.rollout = Rollout(
            prompts=[],
            positions=[],
            completions=[],
            rewards=torch.zeros(0),
            reward_terms={},
            sampled=ScoredPrompts([], [], torch.zeros(0), {}),
            advantages=torch.zeros(0),
            windows=windows,
            passes=self.passes,
            temperature=0.9,
            metrics={"rollout/figure": 1.0},
        )

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        kept = [m.old_logprobs for window in batch.rollout.windows for m in window.micro_batches]
        self.old.append([old for old in kept if old is not None])


class Recording:
    """Remembers what was logged, and every trained weight after every optimizer step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.steps: list[dict[str, float]] = []
        self.weights: list[list[Tensor]] = []

    def log_step(self, figures: dict[str, float], **kwargs: Any) -> None:
        self.steps.append(figures)
        self.weights.append([whole(p.detach()).cpu().clone() for p in self.parameters() if p.requires_grad])
        super().log_step(figures, **kwargs)


class Recorded(Recording, GRPOModule):
    pass


class RecordedPPO(Recording, PPOModule):
    pass


def replay(
    policy: str,
    tmp_path: Path,
    *,
    kind: type[Recorded | RecordedPPO] = Recorded,
    batch: RolloutBatch | None = None,
    split: Split | None = None,
    updates: int = 1,
    passes: int = 1,
    reduction: Any = token_mean,
    beta: float = 0.0,
    rollouts: int = 1,
    callbacks: tuple[L.Callback, ...] = (),
    trainer_options: dict[str, Any] | None = None,
    **module_options: Any,
) -> tuple[Recorded | RecordedPPO, L.Trainer, Attach]:
    batch = batch or recorded()
    module = kind(
        policy,
        objective=ClippedObjective(beta=beta),
        # The record has no sampler.
        correction=False,
        max_logp_difference=math.inf,
        **{"lr": 1e-2, "max_grad_norm": 1.0} | module_options,
    )
    options = {
        "updates": updates,
        "reduction": reduction,
        "max_completion_length": 12,
        "keep": batch.advantages.flatten() != 0 if module.drops_zero_advantage else None,
    }
    attach = Attach(batch, split=split or by_rows(ROWS), options=options, passes=passes)
    defaults = {"max_epochs": 1, "accelerator": "cpu", "devices": 1, "use_distributed_sampler": False}
    trainer = L.Trainer(
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
        callbacks=[attach, *callbacks],
        **defaults | (trainer_options or {}),
    )
    loader = DataLoader([PromptBatch([]) for _ in range(rollouts)], batch_size=None, collate_fn=lambda item: item)
    trainer.fit(module, loader)
    return module, trainer, attach
