"""How fast a run is: seconds, tokens a second and utilisation of the device for each rollout."""

from __future__ import annotations

from typing import Any

import lightning as L
import torch

from grpo_lightning import ranks
from grpo_lightning.models.flops import Group, Shape, forward_flops, peak_flops
from grpo_lightning.rollout.figures import now
from grpo_lightning.types import PromptBatch, Rollout

PHASES = ("sync", "generate", "reward_wait", "score", "forward_backward", "optimizer")
"""They follow each other. ``time/reward`` is none of them: rewards are computed beside the passes, and
``time/reward_wait`` is what is waited for them."""


class ThroughputCallback(L.Callback):
    """Adds to the figures of a rollout's last optimizer step what the whole rollout took.

    ``step_time``: seconds, evaluation and checkpoints not included; of the slowest rank, as every ``time/`` figure is.
    ``time/other``: what no phase explains. ``tokens_per_second``: of prompts and completions, as ``num_tokens`` counts
    them, on all ranks. ``mfu/update`` and ``mfu/step`` (model FLOPs utilisation, PaLM's, arXiv 2204.02311): operations
    that are needed, over what all ranks' devices could do in forward, backward and optimizer, or in the whole rollout.

    Needed is what ``forward_flops`` counts: three forwards for each pass over what is trained on (two with an adapter,
    whose frozen weights need no gradient), one for the old log-probabilities where passes or updates need them, one of
    the reference, and one of all that was sampled. Not needed: padding, repeated prompts, activations computed twice,
    completions that were left out. A critic of its own is not counted. Models of another layout than Llama's have no
    ``mfu``.
    """

    def __init__(self) -> None:
        self._shape: Shape | None = None
        self._batch: PromptBatch | None = None
        self._start = 0.0
        self._steps = 0
        self._phases = self._update = 0.0
        """Seconds of this rollout's phases, and of its optimizer steps."""

    def on_train_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        try:
            self._shape = Shape.of(pl_module.model_config)
        except AttributeError:
            self._shape = None

    def on_train_batch_start(self, trainer: L.Trainer, pl_module: Any, batch: PromptBatch, batch_idx: int) -> None:
        self._batch, self._start = batch, now()
        self._steps, self._phases, self._update = 0, 0.0, 0.0

    def on_step_figures(self, trainer: L.Trainer, pl_module: Any, figures: dict[str, float]) -> None:
        """Add up the phases, and after the last step of a rollout tell what it took."""
        rollout = None if self._batch is None else self._batch.rollout
        if rollout is None:
            return
        self._steps += 1
        self._phases += sum(figures.get(f"time/{phase}", 0.0) for phase in PHASES)
        self._update += figures["time/update"]
        if self._steps < pl_module.steps_per_batch:
            return
        seconds = float(ranks.all_max(torch.tensor(now() - self._start, dtype=torch.float64)))
        update, step = (0, 0) if self._shape is None else needed_flops(self._shape, rollout, pl_module)
        sampled = sum(g.prompt * len(g.completions) + sum(g.completions) for g in sampled_groups(rollout))
        update, step, tokens = ranks.all_sum(torch.tensor([update, step, sampled], dtype=torch.float64)).tolist()
        figures["step_time"] = seconds
        figures["time/other"] = max(seconds - self._phases, 0.0)
        figures["tokens_per_second"] = tokens / seconds
        if self._shape is not None:
            low = str(trainer.precision).startswith("bf16") or pl_module.dtype_name == "bfloat16"
            dtype = torch.bfloat16 if low else torch.float32
            peak = peak_flops(pl_module.device, dtype) * ranks.world_size()
            figures["mfu/update"], figures["mfu/step"] = update / self._update / peak, step / seconds / peak


def needed_flops(shape: Shape, rollout: Rollout, pl_module: Any) -> tuple[int, int]:
    """Operations that this rank's part of a rollout needs: of the optimizer steps, and of everything.

    Args:
        shape: of the policy.
        rollout: of this rank.
        pl_module: that learns from it.
    """
    trained = forward_flops(shape, trained_groups(rollout))
    update = rollout.passes * (3 if pl_module.adapter is None else 2) * trained
    old = trained if rollout.passes * len(rollout.windows) > 1 else 0
    reference = trained if pl_module.needs_reference else 0
    return update, update + old + reference + forward_flops(shape, sampled_groups(rollout))


def sampled_groups(rollout: Rollout) -> list[Group]:
    """Lengths of all that this rank sampled."""
    sampled = zip(rollout.sampled.prompts, rollout.sampled.completions, strict=True)
    return [Group(len(prompt.token_ids), tuple(len(c.token_ids) for c in group)) for prompt, group in sampled]


def trained_groups(rollout: Rollout) -> list[Group]:
    """Lengths of what came into this rank's optimizer steps, prompt by prompt."""
    size = rollout.rewards.shape[1]
    groups: dict[int, tuple[int, list[int]]] = {}
    for batch in (batch for window in rollout.windows for batch in window.micro_batches):
        assert batch.completion_numbers is not None and batch.loss_weights is not None
        counts = (batch.loss_weights != 0).any(dim=1)  # not so in a row that only keeps a rank in step
        rows = torch.stack([batch.completion_numbers, batch.prompt_lengths, batch.sequence_lengths], dim=1)
        for number, prompt, sequence in rows[counts].tolist():
            groups.setdefault(number // size, (prompt, []))[1].append(sequence - prompt)
    return [Group(prompt, tuple(completions)) for prompt, completions in groups.values()]
