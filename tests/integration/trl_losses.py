"""TRL's own loss code and ours, run on given log-probabilities: no model, no trainer, no vLLM."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from grpo_lightning.functional.logprobs import TokenScores
from grpo_lightning.functional.reduction import Reduction
from grpo_lightning.objectives import Objective
from grpo_lightning.rollout_module import RolloutModule
from grpo_lightning.token_means import TokenMeans
from grpo_lightning.types import RolloutBatch, Window
from tests.unit.objectives.cases import LONGEST


@cache
def trl() -> SimpleNamespace:
    """TRL's trainer classes and its defaults; imported late, since that takes seconds."""
    # TRL imports vLLM with its trainers, which takes as long again and changes the process's settings.
    with mock.patch("trl.import_utils.is_vllm_available", return_value=False):
        from trl import GRPOConfig, GRPOTrainer, RLOOTrainer
        from trl.experimental.gmpo import GMPOTrainer
    return SimpleNamespace(
        grpo=GRPOTrainer,
        rloo=RLOOTrainer,
        gmpo=GMPOTrainer,
        defaults={field.name: field.default for field in dataclasses.fields(GRPOConfig)},
    )


def trl_loss(
    logprobs: Tensor,
    rollout: RolloutBatch,
    loss_type: str = "grpo",
    *,
    trainer: str = "grpo",
    accumulation: int = 1,
    tokens: float | None = None,
    entropies: Tensor | None = None,
    sampler_ratio: Tensor | None = None,
    **settings: Any,
) -> tuple[Tensor, Tensor]:
    """Loss of one micro-batch and its gradient by the log-probabilities.

    Args:
        logprobs: of the current policy, ``[B, T]``.
        rollout: the rest; advantages ``[B, 1]`` are handed over as TRL has them, ``[B]``.
        loss_type: TRL's ``loss_type``.
        trainer: whose ``_compute_loss`` runs: ``grpo``, ``rloo`` or ``gmpo``.
        accumulation: micro-batches of the optimizer step.
        tokens: trained tokens of the optimizer step; None: those of ``rollout``.
        entropies: of the policy at each token, ``[B, T]``.
        sampler_ratio: what TRL multiplies the policy's term by for the sampler's mismatch, ``[B, T]`` or ``[B, 1]``.
        settings: TRL's settings, as in ``GRPOConfig``; TRL's defaults for all others.
    """
    logprobs = logprobs.detach().clone().requires_grad_()
    config = SimpleNamespace(
        **(trl().defaults | {"loss_type": loss_type, "steps_per_generation": accumulation} | settings)
    )
    high = config.epsilon if config.epsilon_high is None else config.epsilon_high
    entropies = torch.zeros_like(logprobs) if entropies is None else entropies
    stand_in = SimpleNamespace(
        **vars(config),
        args=config,
        epsilon_low=config.epsilon,
        model=SimpleNamespace(training=True),
        current_gradient_accumulation_steps=accumulation,
        aux_loss_enabled=False,
        _entropy_bonus_enabled=config.entropy_coef != 0,
        _metrics={"train": defaultdict(list)},
        accelerator=SimpleNamespace(
            num_processes=1,
            sync_gradients=False,
            gather=lambda x: x,
            reduce=lambda x, reduction: x,
            pad_across_processes=lambda x, **_: x,
        ),
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs, entropies, None),
        get_gamma_weights=trl().grpo.get_gamma_weights,
        get_off_policy_mask=trl().grpo.get_off_policy_mask,
    )
    stand_in.epsilon_high = high
    stand_in.get_high_entropy_mask = lambda *a: trl().grpo.get_high_entropy_mask(stand_in, *a)
    mask = rollout.completion_mask
    advantages = rollout.advantages
    ids = torch.zeros_like(mask, dtype=torch.long)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": ids[:, :1],
        "completion_ids": ids,
        "completion_mask": mask,
        "advantages": advantages.squeeze(1) if advantages.shape[1] == 1 else advantages,
        "num_items_in_batch": mask.sum() if tokens is None else torch.tensor(tokens),
    }
    if rollout.old_logprobs is not None:
        inputs |= {"old_per_token_logps": rollout.old_logprobs, "old_logps": (rollout.old_logprobs * mask).sum(1)}
    if rollout.ref_logprobs is not None:
        inputs["ref_per_token_logps"] = rollout.ref_logprobs
    if rollout.sampling_logprobs is not None:
        inputs["sampling_per_token_logps"] = rollout.sampling_logprobs
    if sampler_ratio is not None:
        inputs["importance_sampling_ratio"] = sampler_ratio
    loss = getattr(trl(), trainer)._compute_loss(stand_in, None, inputs)
    (gradient,) = torch.autograd.grad(loss, logprobs)
    return loss.detach(), gradient


def our_loss(
    logprobs: Tensor,
    rollout: RolloutBatch,
    objective: Objective,
    reduction: Reduction,
    *,
    entropies: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Loss of an optimizer step of one micro-batch as the module makes it, and its gradient by the log-probabilities.

    Args:
        logprobs: of the current policy, ``[B, T]``.
        rollout: the rest.
        objective: what is minimized.
        reduction: what each token counts.
        entropies: of the policy at each token, ``[B, T]``.
        options: of the module: ``correction``, ``off_policy_mask``, ``entropy_coef``.
    """
    logprobs = logprobs.detach().clone().requires_grad_()
    entropies = torch.zeros_like(logprobs) if entropies is None else entropies
    mask = rollout.completion_mask
    weights = reduction(mask, tokens=float(mask.sum()), sequences=float(len(mask)), max_length=LONGEST)
    sampled_by = rollout.old_logprobs if rollout.sampling_logprobs is None else rollout.sampling_logprobs
    step = dataclasses.replace(
        rollout,
        loss_weights=weights,
        sampling_logprobs=logprobs.detach() if sampled_by is None else sampled_by,
        length_quartile=torch.zeros(len(mask), dtype=torch.long),
    )
    stand_in = SimpleNamespace(
        **{"correction": None, "off_policy_mask": None, "entropy_coef": 0.0} | options,
        objective=objective,
        trainer=SimpleNamespace(world_size=1),
    )
    stand_in._factors = lambda *a: RolloutModule._factors(stand_in, *a)
    window = Window(micro_batches=[step], tokens=float(mask.sum()))
    loss = RolloutModule.policy_loss(
        stand_in, TokenScores(logprobs, entropies), step, window=window, figures=TokenMeans()
    )
    (gradient,) = torch.autograd.grad(loss, logprobs)
    return loss.detach(), gradient
