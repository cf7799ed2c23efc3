"""What a run makes of its prompts, in words: rollouts, optimizer steps, micro-batches, tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import lightning as L

from grpo_lightning.callbacks.rollout import RolloutCallback
from grpo_lightning.data.datamodule import PromptDataModule
from grpo_lightning.rollout.windows import cut_windows, pad_rows
from grpo_lightning.rollout_module import RolloutModule
from grpo_lightning.types import Layout

TRIED_TOKENS = 2**22
"""A rollout of more is not cut up to see how many micro-batches it makes: they are estimated by its size."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Numbers of a run, over all ranks where nothing else is said."""

    prompts: int
    """Of a rollout (P)."""
    group_size: int
    windows: int
    passes: int
    ranks: int
    prompt_length: float
    """Tokens, on average; the limit where the data could not be read."""
    completion_limit: int
    rollouts: float | None
    """Of the whole run; None if it is not known."""

    @property
    def completions(self) -> int:
        """Of a rollout."""
        return self.prompts * self.group_size

    @property
    def steps(self) -> int:
        """Optimizer steps of a rollout."""
        return self.windows * self.passes


def plan_of(trainer: L.Trainer, rollout: RolloutCallback, *, total_steps: int | None) -> Plan:
    """The numbers of a run that learns from rollouts.

    Args:
        trainer: with its data.
        rollout: the callback.
        total_steps: optimizer steps of the run; None if that is not known.
    """
    data, steps = trainer.datamodule, rollout.updates * rollout.passes
    lengths = [len(prompt.token_ids) for prompt in data.train_prompts or []] or [data.max_prompt_length]
    return Plan(
        prompts=data.prompts_per_step,
        group_size=rollout.group_size,
        windows=rollout.updates,
        passes=rollout.passes,
        ranks=trainer.world_size,
        prompt_length=sum(lengths) / len(lengths),
        completion_limit=rollout.sampling.max_completion_length,
        rollouts=None if total_steps is None else total_steps / steps,
    )


def sentences(plan: Plan, data: PromptDataModule, *, micro_batches: str) -> list[str]:
    """The plan for a reader.

    Args:
        plan: of the run.
        data: after its set-up.
        micro_batches: ``"3 to 5"``, of one optimizer step and rank.
    """
    on = "one rank" if plan.ranks == 1 else f"{plan.ranks} ranks, {plan.prompts / plan.ranks:g} prompts each"
    found = [
        f"A rollout is {plan.prompts} prompts x {plan.group_size} completions = {plan.completions}, on {on}.",
        f"It is cut into {_count(plan.windows, 'window')} and gone through {_times(plan.passes)}: "
        f"{_count(plan.steps, 'optimizer step')} a rollout, of {plan.prompts / plan.windows:g} prompts "
        f"({plan.completions / plan.windows:g} completions) each.",
        f"An optimizer step takes {micro_batches} on each rank.",
    ]
    if data.tries > 1:
        found.append(f"Groups whose rewards are all alike are drawn again, from up to {data.tries} x the prompts.")
    if data.train_prompts:
        epoch = len(data.train_prompts) // (plan.prompts * data.tries)
        found.append(f"{len(data.train_prompts):,} prompts make {_count(epoch, 'rollout')} an epoch.")
    if plan.rollouts is not None:
        rollouts, limit = round(plan.rollouts), plan.completion_limit
        prompts, completions = rollouts * plan.prompts, rollouts * plan.completions
        found.append(
            f"The run is {_count(rollouts * plan.steps, 'optimizer step')} = {_count(rollouts, 'rollout')}, "
            f"{prompts:,} prompts ({prompts * plan.prompt_length:,.0f} tokens) and {completions:,} completions of at "
            f"most {limit:,} tokens ({completions * limit:,} in all)."
        )
    return found


def micro_batches(rollout: RolloutCallback, data: PromptDataModule, *, ranks: int, layout: Layout) -> str:
    """Of one optimizer step on one rank, as the run itself cuts its first prompts: with completions of an eighth of the
    limit, and of the full limit.

    Args:
        rollout: the callback.
        data: after its set-up.
        ranks: of the run.
        layout: how the policy computes sequences.
    """
    if not data.train_prompts:
        return "micro-batches as the data will show"
    number = max(data.prompts_per_step // ranks // rollout.updates, 1)
    prompts = [data.train_prompts[i % len(data.train_prompts)].token_ids for i in range(number)]
    limit = rollout.sampling.max_completion_length
    few, many = (
        cut(prompts, rollout=rollout, completion=length, layout=layout) for length in (max(limit // 8, 1), limit)
    )
    range_ = f"{few} to {many} micro-batches" if few != many else _count(many, "micro-batch", plural="micro-batches")
    return f"{range_} of at most {rollout.micro_batch_tokens:,} tokens (completions of {max(limit // 8, 1)} to {limit})"


def cut(prompts: Sequence[Sequence[int]], *, rollout: RolloutCallback, completion: int, layout: Layout) -> int:
    """Micro-batches of a window of these prompts, each with its group of completions of so many tokens.

    Args:
        prompts: token ids, ``[P][S]``.
        rollout: the callback.
        completion: tokens of every completion.
        layout: how the policy computes sequences.
    """
    group = rollout.group_size
    tokens = group * sum(len(prompt) + completion for prompt in prompts)
    if tokens > TRIED_TOKENS:
        shared = sum(map(len, prompts)) * (1 if layout == "shared" else group) + group * completion * len(prompts)
        return max(-(-shared // rollout.micro_batch_tokens), 1)
    rows = pad_rows(
        [prompt for prompt in prompts for _ in range(group)],
        [[0] * completion] * (group * len(prompts)),
        pad_token_id=0,
    )
    (window,) = cut_windows(
        rows,
        updates=1,
        micro_batch_tokens=rollout.micro_batch_tokens,
        reduction=rollout.reduction,
        max_completion_length=completion,
        layout=layout,
    )
    return len(window.micro_batches)


def largest_micro_batch(plan: Plan, most: int) -> int:
    """Tokens of the largest micro-batch, whose bound is ``most`` and which holds one sequence at least."""
    one = round(plan.prompt_length) + plan.completion_limit
    return max(one, min(most, one * plan.completions // plan.windows // plan.ranks))


def layout_of(model: RolloutModule) -> Layout:
    """How the policy will compute sequences, if the model can (``Policy.layout``, which has tried it)."""
    if not model.packing:
        return "padded"
    return "shared" if model.attn_implementation == "sdpa" else "packed"


def supervised_plan(trainer: L.Trainer, model: Any, *, total_steps: int | None) -> Plan:
    """The numbers of a run that learns given texts: an optimizer step is its rollout, a text its one completion.

    Args:
        trainer: with its data.
        model: an ``SFTModule``, set up.
        total_steps: optimizer steps of the run; None if that is not known.
    """
    data = trainer.datamodule
    lengths = [len(prompt.token_ids) for prompt in data.train_prompts or []] or [data.max_prompt_length]
    targets = [len(target) for target in model.targets.values()] or [1]
    return Plan(
        prompts=data.prompts_per_step,
        group_size=1,
        windows=1,
        passes=1,
        ranks=trainer.world_size,
        prompt_length=sum(lengths) / len(lengths),
        completion_limit=round(sum(targets) / len(targets)),
        rollouts=total_steps,
    )


def supervised_sentences(plan: Plan, data: PromptDataModule, *, most: int) -> list[str]:
    """``supervised_plan`` for a reader; ``most`` tokens are a micro-batch."""
    found = [
        f"An optimizer step learns {plan.prompts} rows on {_count(plan.ranks, 'rank')}, in micro-batches of at most "
        f"{most:,} tokens; a row has {plan.prompt_length:.0f} + {plan.completion_limit} tokens on average."
    ]
    if data.train_prompts:
        steps = len(data.train_prompts) // plan.prompts
        found.append(f"{len(data.train_prompts):,} rows make {_count(steps, 'optimizer step')} an epoch.")
    if plan.rollouts is not None:
        found.append(f"The run is {_count(round(plan.rollouts), 'optimizer step')}.")
    return found


def _count(number: float, what: str, *, plural: str = "") -> str:
    return f"{number:,} {what if number == 1 else plural or what + 's'}"


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")
