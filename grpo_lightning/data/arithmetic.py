"""The embedded task: running totals, small enough that a model of a million parameters learns it in a minute.

    Tom has 7 apples, finds 5, loses 3, finds 9. How many?
    step by step: 7+5=12;12-3=9;9+9=18;#### 18          direct: #### 18

A tiny model that was shown both ways of answering is mostly wrong when it answers directly and mostly right when it
works step by step, so that reinforcement learning shows in a minute what it shows at scale in days: the reward rises
and the answers get longer.
"""

from __future__ import annotations

import hashlib
import random
import re
from typing import TYPE_CHECKING, Any, Literal

from grpo_lightning.data.source import PromptSource
from grpo_lightning.errors import UserError
from grpo_lightning.rewards import answer_reader, best, completion_text, inline
from grpo_lightning.types import RewardFunction

if TYPE_CHECKING:
    from transformers import Qwen2Tokenizer

NAMES = ("Tom", "Ann", "Ben", "Eva", "Max", "Mia", "Sam", "Zoe")
THINGS = ("apples", "books", "cards", "coins", "eggs", "pens", "shells", "stars")
GAINS = ("finds", "gets", "buys", "wins")
LOSSES = ("loses", "drops", "sells", "lends")
HIGHEST_TOTAL = 20
EVAL_SHARE = 8
"""One question in this many belongs to the eval split."""

_STEP = re.compile(r"\d+[+-]\d+=\d+;")
_WHOLE_NUMBER = re.compile(r"0|[1-9][0-9]*")


class RunningTotals(PromptSource):
    """Questions about a running total, drawn by a seed; nothing is read or downloaded.

    A question's split is a function of its text alone (a hash), so that no question of one split is ever in the other,
    whatever the seeds and sizes. Rows carry ``question``, ``answer``, ``solution`` (step by step), ``direct`` (the bare
    answer), ``target``, the one of the two that supervised training should imitate, and ``changes``, 3 to 5 of them.

    Cold start in one pass over ``size=32000, direct_share=0.8, direct_from=25600`` in order (``shuffle: false``) at 64
    rows a step: 400 steps of step-by-step work, then 100 steps in which 80% answer directly.

    Args:
        split: ``train`` or ``eval``.
        size: number of questions, all different.
        seed: draws the questions and the targets.
        direct_share: share of rows whose ``target`` is the direct answer.
        direct_from: first row that may have a direct target.
        name: name in metrics.
    """

    def __init__(
        self,
        *,
        split: Literal["train", "eval"] = "train",
        size: int = 8000,
        seed: int = 0,
        direct_share: float = 0.0,
        direct_from: int = 0,
        name: str = "running_totals",
    ) -> None:
        if split not in ("train", "eval"):
            raise UserError(f"--data.source.split {split!r} is unknown to RunningTotals; choose train or eval")
        if size < 1:
            raise UserError(f"--data.source.size is {size}; give at least 1")
        if not 0 <= direct_share <= 1:
            raise UserError(f"--data.source.direct_share is {direct_share}; give a share from 0 to 1")
        self.split = split
        self.size = size
        self.seed = seed
        self.direct_share = direct_share
        self.direct_from = direct_from
        self.name = name

    def rows(self) -> list[dict[str, Any]]:
        draws = random.Random(f"running totals, {self.split}, {self.seed}")
        # A stream of its own: the same questions come whatever the share of direct targets.
        targets = random.Random(f"targets, {self.split}, {self.seed}")
        rows: dict[str, dict[str, Any]] = {}
        while len(rows) < self.size:
            row = _draw(draws)
            question = row["question"]
            if question in rows or split_of(question) != self.split:
                continue
            direct = targets.random() < self.direct_share and len(rows) >= self.direct_from
            rows[question] = {**row, "target": row["direct"] if direct else row["solution"]}
        return list(rows.values())

    @property
    def correctness(self) -> RewardFunction:
        return running_total_accuracy

    def extract_answer(self, completion: str) -> str | None:
        return last_total(completion)


def split_of(question: str) -> Literal["train", "eval"]:
    """The split that a question belongs to, by a hash of its text."""
    return "eval" if hashlib.sha256(question.encode()).digest()[0] % EVAL_SHARE == 0 else "train"


def last_total(completion: str) -> str | None:
    """The whole number that alone follows the last ``####``, or None."""
    total = completion.rpartition("####")[2].strip() if "####" in completion else ""
    return total if _WHOLE_NUMBER.fullmatch(total) else None


@inline
@best(1.0)
@answer_reader(last_total)
def running_total_accuracy(*, completions: list[Any], answer: list[str], **_: Any) -> list[float | None]:
    """1.0 if what follows the last ``####`` is exactly the answer and nothing else, else 0.0.

    Args:
        completions: texts, or lists of chat messages.
        answer: gold totals.
    """
    texts = [completion_text(completion) for completion in completions]
    return [float(last_total(text) == gold) for text, gold in zip(texts, answer, strict=True)]


def is_step_by_step(completion: str) -> bool:
    """True if the answer shows its work: at least one step ``7+5=12;`` stands before the last ``####``."""
    work, _, _ = completion.rpartition("####")
    return _STEP.search(work) is not None


def build_tokenizer() -> Qwen2Tokenizer:
    """A lossless tokenizer of the task's words and single digits (49 tokens, ``<pad>`` and ``<eos>`` among them).

    Digits are tokens of their own, so that the model meets sums as people write them. A word carries the space before
    it, and decoding joins tokens with nothing in between: text that the vocabulary covers is given back character by
    character. Characters that it does not cover are dropped.

    Words are added tokens over single-byte atoms, since transformers rebuilds the tokenizer of any Qwen2 folder as
    byte-level BPE: a word-level vocabulary would come back from ``AutoTokenizer`` without its words.
    """
    from transformers import AddedToken, Qwen2Tokenizer

    # Byte-level BPE writes a new line as "Ċ" and a space as "Ġ".
    atoms = ["<pad>", "<eos>", "Ċ", "Ġ", *"0123456789", *"+-=;,.?"]
    words = [*NAMES, *(f" {word}" for word in (*THINGS, *GAINS, *LOSSES, "has", "How", "many")), "####"]
    tokenizer = Qwen2Tokenizer(
        vocab={atom: number for number, atom in enumerate(atoms)},
        merges=[],
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token=None,  # type: ignore[arg-type]
        clean_up_tokenization_spaces=False,
        model_max_length=256,
    )
    tokenizer.add_tokens([AddedToken(word, normalized=False, special=False) for word in words])
    return tokenizer


def _draw(draws: random.Random) -> dict[str, Any]:
    total = draws.randint(1, 9)
    story = f"{draws.choice(NAMES)} has {total} {draws.choice(THINGS)}"
    work = ""
    changes = draws.randint(3, 5)
    for _ in range(changes):
        # At 0 nothing can be lost and at the top nothing gained; amounts keep the total in range.
        gain = total == 0 or (total < HIGHEST_TOTAL and draws.random() < 0.5)
        amount = draws.randint(1, min(9, HIGHEST_TOTAL - total if gain else total))
        after = total + amount if gain else total - amount
        story += f", {draws.choice(GAINS if gain else LOSSES)} {amount}"
        work += f"{total}{'+' if gain else '-'}{amount}={after};"
        total = after
    direct = f"#### {total}"
    return {
        "question": f"{story}. How many?",
        "answer": str(total),
        "solution": work + direct,
        "direct": direct,
        "changes": changes,
    }
