"""Rewards in TRL's form: keyword ``completions`` and data columns in, one score per completion out.

A score of None means that the reward does not apply to the row. Any function of that form works as a reward: name it by
its dotted path. Heavy libraries (math-verify, sympy) are imported by worker processes only.
"""

from __future__ import annotations

from grpo_lightning.rewards.accuracy import (
    GSM8KAccuracy,
    MathAccuracy,
    gold_is_parsable,
    gsm8k_accuracy,
    math_accuracy,
)
from grpo_lightning.rewards.code.reward import CodeTests
from grpo_lightning.rewards.completions import completion_text
from grpo_lightning.rewards.counts import tag_count, xml_count, xml_count_as_published, xml_count_three_tags
from grpo_lightning.rewards.exact import (
    exact_answer,
    exact_answer_as_published,
    integer_answer,
    integer_answer_as_published,
    multiple_choice,
)
from grpo_lightning.rewards.layout import (
    CodeFormat,
    choice_format_soft,
    choice_format_strict,
    reasoning_format_soft,
    reasoning_format_soft_as_published,
    reasoning_format_strict,
    think_answer_format,
    think_answer_format_strict,
    think_format,
)
from grpo_lightning.rewards.lengths import CosineLength, KimiLength, SoftOverlongPunishment
from grpo_lightning.rewards.marks import answer_reader, best, gold_reader, inline
from grpo_lightning.rewards.reasoning import (
    ReasoningKeywords,
    reasoning_length,
    reasoning_steps,
    reasoning_steps_as_published,
)
from grpo_lightning.rewards.reward_model import RewardModel
from grpo_lightning.rewards.scoring.combination import Gate, LinearWeight
from grpo_lightning.rewards.scoring.runner import RewardScorer, Scores
from grpo_lightning.rewards.style import LanguageConsistency, RepetitionPenalty
from grpo_lightning.rewards.tiered import ShapedAccuracy, TieredAccuracy

__all__ = [
    "CodeFormat",
    "CodeTests",
    "CosineLength",
    "GSM8KAccuracy",
    "Gate",
    "KimiLength",
    "LanguageConsistency",
    "LinearWeight",
    "MathAccuracy",
    "ReasoningKeywords",
    "RepetitionPenalty",
    "RewardModel",
    "RewardScorer",
    "Scores",
    "ShapedAccuracy",
    "SoftOverlongPunishment",
    "TieredAccuracy",
    "answer_reader",
    "best",
    "choice_format_soft",
    "choice_format_strict",
    "completion_text",
    "exact_answer",
    "exact_answer_as_published",
    "gold_is_parsable",
    "gold_reader",
    "gsm8k_accuracy",
    "inline",
    "integer_answer",
    "integer_answer_as_published",
    "math_accuracy",
    "multiple_choice",
    "reasoning_format_soft",
    "reasoning_format_soft_as_published",
    "reasoning_format_strict",
    "reasoning_length",
    "reasoning_steps",
    "reasoning_steps_as_published",
    "tag_count",
    "think_answer_format",
    "think_answer_format_strict",
    "think_format",
    "xml_count",
    "xml_count_as_published",
    "xml_count_three_tags",
]
