"""Rewards of a completion's length: in tokens, the end-of-sequence token included, unless a variant says characters."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

from grpo_lightning.errors import UserError
from grpo_lightning.rewards.accuracy import math_accuracy
from grpo_lightning.rewards.completions import completion_text
from grpo_lightning.rewards.marks import marked
from grpo_lightning.rewards.settings import at_least, one_of

Variant = Literal["default", "as_published"]
_VARIANTS = ("default", "as_published")


class CosineLength:
    """Right answers earn more the shorter they are, wrong ones lose less the longer they are, along half a cosine.

    ``long + (short - long) (1 + cos(pi min(length / max_length, 1))) / 2``; None where the correctness is None.

    Source: "Demystifying Long Chain-of-Thought Reasoning" (arXiv 2502.03373, C.1); TRL's and open-r1's
    ``get_cosine_scaled_reward``, whose ``max_value_correct``, ``min_value_correct``, ``min_value_wrong`` and
    ``max_value_wrong`` are ``right_short``, ``right_long``, ``wrong_short`` and ``wrong_long`` here. Open-r1's
    function has the defaults below; its recipe sets ``wrong_short`` to 0. ``variant="as_published"`` is open-r1's:
    it counts characters and lets the cosine climb again beyond ``max_length``, where a long wrong text loses as
    much as a short one.

    Args:
        max_length: tokens (characters without ``completion_ids``) from which on the long end holds.
        right_short: right, with length 0.
        right_long: right, with ``max_length`` or more.
        wrong_short: wrong, with length 0.
        wrong_long: wrong, with ``max_length`` or more.
        correctness: reward function that says what is right: its ``best`` score, 1.0 if it is not marked.
        variant: ``default`` or ``as_published``.
    """

    __name__ = "cosine_length"

    def __init__(
        self,
        *,
        max_length: int = 1000,
        right_short: float = 1.0,
        right_long: float = 0.5,
        wrong_short: float = -1.0,
        wrong_long: float = -0.5,
        correctness: Callable[..., Any] = math_accuracy,
        variant: Variant = "default",
    ) -> None:
        self.max_length = at_least("CosineLength", "max_length", max_length, 1)
        self.right = (right_short, right_long)
        self.wrong = (wrong_short, wrong_long)
        self.correctness = correctness
        self.variant = one_of("CosineLength", "variant", variant, _VARIANTS)
        self.inline = bool(marked(correctness, "inline"))

    def __call__(
        self, completions: Sequence[Any], answer: Sequence[Any], completion_ids: Any = None, **columns: Any
    ) -> list[float | None]:
        right = _right(self.correctness, completions, answer, completion_ids, columns)
        lengths = _lengths(completions, None if self.variant == "as_published" else completion_ids)
        return [
            None if verdict is None else self._score(verdict, length)
            for verdict, length in zip(right, lengths, strict=True)
        ]

    def _score(self, right: bool, length: int) -> float:
        short, long = self.right if right else self.wrong
        progress = length / self.max_length
        if self.variant == "default":
            progress = min(progress, 1.0)
        return long + 0.5 * (short - long) * (1.0 + math.cos(math.pi * progress))


class KimiLength:
    """Among the answers to one prompt, short ones earn up to 0.5 and long ones lose up to 0.5; wrong ones never earn.

    ``x = 0.5 - (length - shortest) / (longest - shortest)`` over the completions of the same prompt, right or wrong;
    right: x; wrong: min(0, x); all of one length: 0; None where the correctness is None.

    Source: Kimi k1.5 (arXiv 2501.12599, 2.3.3); open-r1's ``len_reward``. That one takes characters, and shortest
    and longest of the whole batch, which punishes whoever got the harder question: ``variant="as_published"``. Rows
    belong together if their prompts are equal.

    Args:
        correctness: reward function that says what is right: its ``best`` score, 1.0 if it is not marked.
        variant: ``default`` or ``as_published``.
    """

    __name__ = "kimi_length"

    def __init__(self, *, correctness: Callable[..., Any] = math_accuracy, variant: Variant = "default") -> None:
        self.correctness = correctness
        self.variant = one_of("KimiLength", "variant", variant, _VARIANTS)
        self.inline = bool(marked(correctness, "inline"))

    def __call__(
        self,
        completions: Sequence[Any],
        answer: Sequence[Any],
        completion_ids: Any = None,
        prompts: Sequence[Any] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        if prompts is not None:
            columns["prompts"] = prompts
        right = _right(self.correctness, completions, answer, completion_ids, columns)
        published = self.variant == "as_published"
        lengths = _lengths(completions, None if published else completion_ids)
        groups = [""] * len(lengths) if published or prompts is None else [repr(prompt) for prompt in prompts]
        shortest: dict[str, int] = {}
        longest: dict[str, int] = {}
        for group, length in zip(groups, lengths, strict=True):
            shortest[group] = min(length, shortest.get(group, length))
            longest[group] = max(length, longest.get(group, length))
        scores: list[float | None] = []
        for verdict, group, length in zip(right, groups, lengths, strict=True):
            spread = longest[group] - shortest[group]
            score = 0.5 - (length - shortest[group]) / spread if spread else 0.0
            scores.append(None if verdict is None else score if verdict else min(0.0, score))
        return scores


class SoftOverlongPunishment:
    """0 up to ``max_length - cache_length`` tokens, then linearly down to -1 at ``max_length``, and -1 beyond.

    Source: DAPO (arXiv 2503.14476, equation 13); TRL's ``get_soft_overlong_punishment(max_completion_len,
    soft_punish_cache)`` and open-r1's ``soft_overlong``.

    Args:
        max_length: tokens from which on a completion scores -1; DAPO's L_max.
        cache_length: tokens over which the score falls; DAPO's L_cache, 0 for a step.
    """

    __name__ = "soft_overlong_punishment"
    inline = True

    def __init__(self, *, max_length: int, cache_length: int) -> None:
        self.max_length = at_least("SoftOverlongPunishment", "max_length", max_length, 1)
        self.cache_length = at_least("SoftOverlongPunishment", "cache_length", cache_length, 0)
        if cache_length > max_length:
            raise UserError(
                f"SoftOverlongPunishment: cache_length {cache_length} is more than max_length {max_length}; lower it"
            )

    def __call__(
        self, completions: Sequence[Any], completion_ids: Sequence[Sequence[int]], **_: Any
    ) -> list[float | None]:
        return [self._score(len(ids)) for ids in completion_ids]

    def _score(self, length: int) -> float:
        over = length - (self.max_length - self.cache_length)
        if over <= 0:
            return 0.0
        return -1.0 if length > self.max_length else -over / self.cache_length


def _lengths(completions: Sequence[Any], completion_ids: Sequence[Sequence[int]] | None) -> list[int]:
    if completion_ids is not None:
        return [len(ids) for ids in completion_ids]
    return [len(completion_text(completion)) for completion in completions]


def _right(
    correctness: Callable[..., Any],
    completions: Sequence[Any],
    answer: Sequence[Any],
    completion_ids: Any,
    columns: dict[str, Any],
) -> list[bool | None]:
    """Which completions earn the correctness reward's best score; None where it does not apply."""
    keywords = {**columns, "completions": completions, "answer": answer, "completion_ids": completion_ids}
    parameters = inspect.signature(correctness).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        keywords = {name: value for name, value in keywords.items() if name in parameters}
    most = marked(correctness, "best", 1.0)
    return [None if score is None else score >= most for score in correctness(**keywords)]
