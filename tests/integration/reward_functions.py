"""Reward functions in TRL's form; tests name them by dotted path.

Many are inline: a process for each would cost every run a second.
"""

from __future__ import annotations

from typing import Any

from grpo_lightning.rewards import best, gold_reader, inline


def _text(completion: Any) -> str:
    return completion if isinstance(completion, str) else completion[0]["content"]


@inline
def share_of_digits(completions: list[Any], **kwargs: Any) -> list[float]:
    """How much of a completion is digits: a random model gets varied scores."""
    texts = [_text(completion) for completion in completions]
    return [sum(c.isdigit() for c in text) / max(len(text), 1) for text in texts]


def raises(completions: list[Any], **kwargs: Any) -> list[float]:
    error = ValueError("no answer found")
    error.row = 3  # type: ignore[attr-defined]
    raise error


@inline
def needs_level(completions: list[Any], level: list[int], **kwargs: Any) -> list[float]:
    return [float(number) for number in level]


@inline
def names_level(completions: list[Any], level: list[int | None]) -> list[float]:
    return [float(number or 0) for number in level]


@inline
def one_for_all(completions: list[Any], **kwargs: Any) -> list[float]:
    return [1.0]


@inline
def fails(completions: list[Any], **kwargs: Any) -> list[float]:
    raise KeyError("nothing")


@inline
def begins_with_a_digit(completions: list[Any], **kwargs: Any) -> list[float]:
    """A rule that a random model meets now and then."""
    return [float(_text(completion)[:1].isdigit()) for completion in completions]


@inline
def never(completions: list[Any], **kwargs: Any) -> list[float]:
    return [0.0] * len(completions)


@best(1.0)
@gold_reader(lambda answer: answer.rpartition("#### ")[2])
def about_even_numbers(completions: list[Any], answer: list[str], **kwargs: Any) -> list[float | None]:
    """Right answers to even golds; of odd ones it knows nothing."""
    golds = [gold.rpartition("#### ")[2] for gold in answer]
    return [
        float(gold in _text(completion)) if int(gold) % 2 == 0 else None
        for completion, gold in zip(completions, golds, strict=True)
    ]
