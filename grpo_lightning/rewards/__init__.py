"""Rewards in TRL's form: keyword ``completions`` and data columns in, one score per completion out.

A score of None means that the reward does not apply to the row. Any function of that form works as a reward: name it by
its dotted path. Heavy libraries (math-verify, sympy) are imported by worker processes only.
"""

from __future__ import annotations

from grpo_lightning.rewards.accuracy import gold_is_parsable, gsm8k_accuracy, math_accuracy
from grpo_lightning.rewards.completions import completion_text
from grpo_lightning.rewards.format import think_answer_format, think_format
from grpo_lightning.rewards.marks import best, inline
from grpo_lightning.rewards.runner import RewardScorer, Scores

__all__ = [
    "RewardScorer",
    "Scores",
    "best",
    "completion_text",
    "gold_is_parsable",
    "gsm8k_accuracy",
    "inline",
    "math_accuracy",
    "think_answer_format",
    "think_format",
]
