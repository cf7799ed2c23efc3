"""Where questions come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from grpo_lightning.types import RewardFunction


class PromptSource(ABC):
    """A set of questions with their gold answers, and the rule that says whether a completion is right.

    A new data set is one subclass in one file; name it by ``class_path`` in the config.
    """

    name: str
    """Short name used in metrics: ``val/<name>/accuracy``."""

    @abstractmethod
    def rows(self) -> Sequence[dict[str, Any]]:
        """One dict per question.

        Keys: ``question`` (text, or a list of chat messages), ``answer`` (the gold, as text), optionally ``solution``
        (worked-out text that ends in the answer), and any further columns, which rewards get as keywords.

        Raises:
            UserError: if the file, data set or a column is missing.
        """

    def place(self, number: int) -> str:
        """Where the user finds a row, for messages; ``number`` counts ``rows()`` from 0."""
        return f"row {number}"

    @property
    @abstractmethod
    def correctness(self) -> RewardFunction:
        """Reward function that is 1.0 for a right completion; used for accuracy in evaluation."""

    @abstractmethod
    def extract_answer(self, completion: str) -> str | None:
        """The final answer in a completion in a normal form (equal answers, equal strings), or None; for maj@k."""
