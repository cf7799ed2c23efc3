"""What the five sets of rewards were published with, and what replies earn by them, worked out by hand."""

from __future__ import annotations

from typing import Any

REWARDS = "grpo_lightning.rewards"


def _object(name: str, **arguments: Any) -> dict[str, Any]:
    return {"class_path": f"{REWARDS}.{name}", "init_args": arguments}


def _set(*rewards: Any, clip: list[float] | None = None) -> dict[str, Any]:
    """The options of a plain sum: the scores themselves are the published ones."""
    return {
        "rollout.rewards": [f"{REWARDS}.{reward}" if isinstance(reward, str) else reward for reward in rewards],
        "rollout.reward_weights": [1.0] * len(rewards),
        "rollout.reward_gates": None,
        "rollout.reward_clip": clip,
        "rollout.normalize_each_reward": False,
    }


SETS: dict[str, dict[str, Any]] = {
    "open_r1": _set(
        "math_accuracy",
        "think_answer_format",
        "reasoning_steps",
        _object(
            "CosineLength",
            max_length=1000,
            right_short=1.0,
            right_long=0.5,
            wrong_short=0.0,
            wrong_long=-0.5,
            correctness=f"{REWARDS}.math_accuracy",
            variant="default",
        ),
        _object("RepetitionPenalty", n=3, max_penalty=-1.0, variant="default"),
    ),
    "tiered": _set(_object("TieredAccuracy", variant="default")),
    "shaped": _set(_object("ShapedAccuracy", variant="default", cap=0.9)),
    "logic_choice": _set(
        "multiple_choice",
        "choice_format_strict",
        "choice_format_soft",
        "xml_count_three_tags",
        "reasoning_length",
        _object(
            "ReasoningKeywords",
            keywords=["row", "column", "sum", "unique", "digit", "no repeat", "clue"],
            each=0.1,
            most=0.5,
            variant="default",
        ),
        clip=[-5.0, 5.0],
    ),
    "gsm8k_five": _set(
        "exact_answer", "integer_answer", "reasoning_format_strict", "reasoning_format_soft", "xml_count"
    ),
}
"""Options of each overlay in ``configs/rewards``, as they are resolved."""

NAMES: dict[str, list[str]] = {
    "open_r1": ["math_accuracy", "think_answer_format", "reasoning_steps", "cosine_length", "repetition_penalty"],
    "tiered": ["tiered_accuracy"],
    "shaped": ["shaped_accuracy"],
    "logic_choice": [
        "multiple_choice",
        "choice_format_strict",
        "choice_format_soft",
        "xml_count_three_tags",
        "reasoning_length",
        "reasoning_keywords",
    ],
    "gsm8k_five": [
        "exact_answer",
        "integer_answer",
        "reasoning_format_strict",
        "reasoning_format_soft",
        "xml_count",
    ],
}
"""Under which the terms are logged."""

OF_RECIPE = {
    "math_open_r1": "open_r1",
    "gsm8k_qwen2.5_1.5b": "tiered",
    "logic_choice": "logic_choice",
    "gsm8k_qwen2.5_0.5b": "gsm8k_five",
}
"""The set that each recipe holds."""

_R1 = "<think> Step 1: 3 of 7 </think> <answer> It is \\({}\\). </answer>"
_LAID_OUT = "<reasoning>\n{}\n</reasoning>\n<answer>\n{}\n</answer>"
_CLUES = "The row and the column have a unique digit sum, by the clue."  # 13 words, six of the keywords
_NOTES = {"answer": "7", "published_answer": "5+2 = <<5+2=7>>7\n#### 7"}

TOTALS: dict[str, list[tuple[dict[str, Any], str, int, float]]] = {
    # accuracy + format + steps + cosine + repetition
    "open_r1": [
        ({"answer": r"\frac{3}{7}"}, _R1.format(r"\frac{3}{7}"), 500, 1 + 1 + 1 / 3 + 0.75),
        ({"answer": r"\frac{3}{7}"}, _R1.format(r"\frac{3}{7}"), 1000, 1 + 1 + 1 / 3 + 0.5),
        ({"answer": r"\frac{3}{7}"}, _R1.format(r"\frac{4}{7}"), 1000, 0 + 1 + 1 / 3 - 0.5),
        ({"answer": r"\frac{3}{7}"}, _R1.format(r"\frac{4}{7}"), 500, 0 + 1 + 1 / 3 - 0.25),
        ({"answer": "7"}, "no no no no no no", 2000, 0 + 0 + 0 - 0.5 - 0.75),  # four times the same three words
        ({"answer": "7"}, "#### 7", 0, 1 + 0 + 0 + 1.0),
    ],
    "tiered": [
        ({"answer": "7"}, "5 + 2 = 7\n### 答案: 7", 9, 1.0),
        ({"answer": "7"}, "首先 5 + 2\n### 答案: 8", 9, 0.2),
        ({"answer": "7"}, "5 + 2 = 8\n### 答案: 8", 9, 0.0),
        ({"answer": "7"}, "首先我们想一想这个问题吧", 9, 0.1),
        ({"answer": "7"}, "I do not know that.", 9, -0.5),
        ({"answer": "7"}, "8", 9, -1.0),
    ],
    # tier + form + steps + results
    "shaped": [
        (_NOTES, "5 + 2 = 7\n### 答案: 7", 9, 1.0),
        (_NOTES, "5 + 2 = 8\n### 答案: 8", 9, 0.0 + 0.15),
        (_NOTES, "首先 5 + 2 = 8\n### 答案: 8", 9, 0.2 + 0.15 + 0.1 + 0.2 / 5),
        (_NOTES, "首先 5 + 2 = 7\n然后验证\n### 答案: 8", 9, 0.9),  # 0.2 + 0.3 + 0.08 + 0.5 is above the cap
        (_NOTES, "I do not know that.", 9, -0.5),
        (_NOTES, "8", 9, -1.0),
    ],
    # letter + strict + soft + tags + length + keywords
    "logic_choice": [
        ({"answer": "B"}, _LAID_OUT.format("Not A.", "\\boxed{B}"), 9, 2 + 1 + 0.5 + 0.375),
        ({"answer": "B"}, _LAID_OUT.format("Not A.", "\\boxed{C}"), 9, 0 + 1 + 0.5 + 0.375),
        ({"answer": "B"}, _LAID_OUT.format(_CLUES, "\\boxed{B}"), 9, 2 + 1 + 0.5 + 0.375 + 0 + 0.5),
        ({"answer": "B"}, _LAID_OUT.format(f"{_CLUES} " * 2, "\\boxed{B}"), 9, 2 + 1 + 0.5 + 0.375 + 0.25 + 0.5),
        ({"answer": "B"}, _LAID_OUT.format(f"{_CLUES} " * 8, "\\boxed{B}"), 9, 5.0),  # 5.125 is above the bound
        ({"answer": "B"}, "It is B.", 9, 0.0),
    ],
    # answer + integer + strict + soft + tags
    "gsm8k_five": [
        ({"answer": "7"}, _LAID_OUT.format("5 and 2", "7") + "\n", 9, 2 + 0.5 + 0.5 + 0.5 + 0.5),
        ({"answer": "7"}, _LAID_OUT.format("5 and 2", "8") + "\n", 9, 0 + 0.5 + 0.5 + 0.5 + 0.5),
        ({"answer": "7"}, _LAID_OUT.format("5 and 2", "7"), 9, 2 + 0.5 + 0 + 0.5 + 0.5),
        ({"answer": "0.5"}, _LAID_OUT.format("half", "1/2") + "\n", 9, 2 + 0 + 0.5 + 0.5 + 0.5),
        ({"answer": "7"}, _LAID_OUT.format("5 and 2", "7") + "\nDone.", 9, 2 + 0.5 + 0 + 0.5 + 0.5 - 0.005 - 0.005),
        ({"answer": "7"}, "#### 7", 9, 0.0),
    ],
}
"""Data columns, a reply, its number of tokens, and the sum of what it earns."""
