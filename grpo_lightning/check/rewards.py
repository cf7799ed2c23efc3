"""What the rewards make of a few completions before any is sampled, and of what the data do not have."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch

from grpo_lightning.callbacks.gold_check import spread
from grpo_lightning.callbacks.right_replies import WORK, as_completion, right_replies
from grpo_lightning.data.datamodule import PromptDataModule
from grpo_lightning.rewards.marks import innermost
from grpo_lightning.rewards.scoring.invocation import TRAINER_KEYWORDS
from grpo_lightning.rewards.scoring.runner import RewardScorer
from grpo_lightning.types import Prompt

PROMPTS = 2
"""Whose groups are scored: more than one, so that one score for all is not taken for one each."""


def loads_a_model(reward: Any) -> bool:
    """True for a reward that is a model, or loads one when it is called."""
    called = innermost(reward)
    return hasattr(called, "place") or isinstance(called, torch.nn.Module)


def score_golds(scorer: RewardScorer, data: PromptDataModule, *, group_size: int, trainer_state: Any = None) -> None:
    """Score a rollout of two prompts whose completions are all a right answer, as a rollout's are scored.

    Args:
        scorer: of the one reward that is tried.
        data: set up, with its tokenizer.
        group_size: completions of each prompt (G).
        trainer_state: handed to the rewards.

    Raises:
        UserError: if a function needs what the data lack, or returns what is not one score for each completion.
        RunStopped: if a function raises.
    """
    chosen = spread(data.train_prompts or [], PROMPTS)
    read = getattr(scorer.rewards[0], "gold_reader", str)
    completions = []
    for prompt in chosen:
        replies = right_replies(prompt, data.template.answer_format, column="answer", read=read)
        reply = as_completion(prompt, replies[0].text if replies else WORK, data.tokenizer)
        completions.append([reply] * group_size)
    scorer.score(chosen, completions, trainer_state=trainer_state)


def empty_columns(scorer: RewardScorer, prompts: list[Prompt]) -> Iterator[str]:
    """A sentence on every column that a reward names and some rows lack."""
    for name, reward in zip(scorer.names, scorer.rewards, strict=True):
        for column in inspect.signature(reward).parameters:
            if column in TRAINER_KEYWORDS or not any(column in prompt.columns for prompt in prompts):
                continue
            empty = sum(prompt.columns.get(column) is None for prompt in prompts)
            if empty:
                yield (
                    f"column {column!r} is empty in {empty} of {len(prompts)} rows; a reward that asks for it, as "
                    f"{name} does, gets None"
                )
