"""Reward functions with the signatures that tutorials use for chat prompts: they must run here unchanged.

They read ``completions[i][0]["content"]`` and ``prompts[0][-1]["content"]``, take columns by name or from ``**kwargs``,
return numbers of any kind, and some are made by a function or are objects.
"""

from __future__ import annotations

import re
from functools import partial


def correctness_reward_func(prompts, completions, answer, **kwargs) -> list[float]:
    """2.0 for the right text between the tags; prints the first row, as tutorials do."""
    question = prompts[0][-1]["content"]
    print("-" * 20, f"Question:\n{question}", f"\nAnswer:\n{answer[0]}", f"\nReply:\n{completions[0][0]['content']}")
    contents = [completion[0]["content"] for completion in completions]
    found = [content.split("<answer>")[-1].split("</answer>")[0].strip() for content in contents]
    return [2.0 if text == gold else 0.0 for text, gold in zip(found, answer, strict=True)]


def digits_reward_func(completions, **kwargs) -> list[float]:
    contents = [completion[0]["content"] for completion in completions]
    return [0.5 if any(character.isdigit() for character in content) else 0.0 for content in contents]


def layout_reward_func(completions, **kwargs):
    """Whole numbers and truth values instead of floats."""
    pattern = re.compile(r"^<reasoning>.*?</reasoning>", re.DOTALL)
    return [bool(pattern.match(completion[0]["content"])) for completion in completions]


def columns_reward_func(completions, **kwargs):
    """Takes a column from the keywords."""
    return [float(len(gold)) for gold in kwargs["answer"]]


def positional_reward_func(prompts, completions, completion_ids, answer):
    """All by name and no ``**kwargs``."""
    return [len(ids) / 8 for ids in completion_ids]


def get_length_reward(most: int):
    """A function made by a function, as TRL's ``get_...`` rewards were."""

    def length_reward(completion_ids, **kwargs):
        return [-1.0 if len(ids) > most else 0.0 for ids in completion_ids]

    return length_reward


short_reward = get_length_reward(4)


def _limited(completion_ids, most, **kwargs):
    return [float(len(ids) <= most) for ids in completion_ids]


partial_reward = partial(_limited, most=4)
