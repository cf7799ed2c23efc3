"""Does the sampler say what the trainer says, of a few tokens that it samples? See ``rollout.sampler_gap``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import lightning as L
import torch

from grpo_lightning.callbacks.rollout import RolloutCallback
from grpo_lightning.errors import RunStopped
from grpo_lightning.models.origin import attach_adapter
from grpo_lightning.rollout.drawing import decode
from grpo_lightning.rollout.sampler_gap import gap_figures
from grpo_lightning.rollout.windows import pad_rows
from grpo_lightning.strategies import FSDP2Precision
from grpo_lightning.types import Completion, Prompt, RolloutBatch

TOKENS, PROMPTS, EACH = 24, 2, 2
"""Tokens of a completion, prompts, and completions of each."""


def load_policy(model: Any) -> None:
    """What ``configure_model`` does, in one process and without a reference, whatever the strategy."""
    precision = model.trainer.precision_plugin
    with precision.module_init_context():
        policy = model.build_policy(model.policy_path).train()
        if model.adapter is not None:
            model.origin |= attach_adapter(policy, model.adapter, with_reference=False)
    model.policy, model.layout = policy, policy.layout
    precision.convert_module(model)
    model.to(model.trainer.strategy.root_device)


def in_the_run_s_precision(model: Any) -> AbstractContextManager:
    """Around a forward: autocast where the run's shards would compute in bfloat16, which are none in one process."""
    if isinstance(model.trainer.precision_plugin, FSDP2Precision):
        return torch.autocast(model.device.type, torch.bfloat16)
    return nullcontext()


def sample(
    trainer: L.Trainer, model: Any, rollout: RolloutCallback, prompts: Sequence[Prompt]
) -> list[list[Completion]]:
    """A few completions, decoded, from the run's own engine with the policy's weights."""
    engine = rollout.sampler.ready(trainer, model)
    sampling = replace(rollout.sampling, max_completion_length=min(TOKENS, rollout.sampling.max_completion_length))
    drawn = engine.generate(
        [prompt.token_ids for prompt in prompts], sampling, group_size=EACH, seeds=list(range(0, 97 * len(prompts), 97))
    )
    decode(model.tokenizer, drawn)
    return drawn


def compare(
    model: Any, rollout: RolloutCallback, prompts: Sequence[Prompt], drawn: Sequence[Sequence[Completion]]
) -> dict[str, float]:
    """The run's own figures of the gap on these completions; refused where the run would stop.

    Args:
        model: with its policy.
        rollout: the callback.
        prompts: that were asked.
        drawn: their completions.

    Raises:
        RunStopped: if the two have other weights, or the sampler's are broken.
    """
    rows = [(p.token_ids, completion) for p, group in zip(prompts, drawn, strict=True) for completion in group]
    padded = pad_rows(
        [ids for ids, _ in rows], [c.token_ids for _, c in rows], pad_token_id=model.tokenizer.pad_token_id
    )
    width = padded.completion_mask.shape[1]
    sampled = torch.tensor([c.logprobs + [0.0] * (width - len(c.logprobs)) for _, c in rows])
    if not sampled.isfinite().all():
        raise RunStopped("the sampler returned NaN or infinite log-probabilities: it has broken weights")
    batch = RolloutBatch(**vars(padded), advantages=torch.zeros(len(rows), 1), sampling_logprobs=sampled)
    batch = batch.to(model.device)
    with in_the_run_s_precision(model):
        scores = model.score(batch, temperature=rollout.sampling.temperature)
    figures = gap_figures(scores.logprobs, batch)
    model.stop_on_mismatch(figures, truncated=rollout.sampling.truncated)
    return figures


def require_fitting_checkpoint(model: Any, path: str) -> None:
    """Refuse a checkpoint of another model, or of another start, than the run's.

    Args:
        model: with its policy.
        path: of the checkpoint's file.
    """
    content = torch.load(path, mmap=True, map_location="cpu", weights_only=True)
    model.check_checkpoint({name: tensor.shape for name, tensor in content["state_dict"].items()})
    model.on_load_checkpoint(content)
