"""From a source's rows to prompts, with everything that can be wrong with them found before training starts."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_lightning import ranks
from grpo_lightning.data.source import PromptSource
from grpo_lightning.data.templates import PromptTemplate
from grpo_lightning.errors import UserError
from grpo_lightning.rewards.scoring.runner import TRAINER_KEYWORDS
from grpo_lightning.types import Message, Prompt

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row and where it stands in its source."""

    number: int
    columns: dict[str, Any]

    @property
    def key(self) -> str:
        """The question's text with white space evened out: equal keys are the same question."""
        question = self.columns["question"]
        if not isinstance(question, str):
            question = json.dumps([[m["role"], m["content"]] for m in question], ensure_ascii=False)
        return " ".join(question.split())


@dataclass(frozen=True, kw_only=True)
class LoadedPrompts:
    """Prompts, and what was left out on the way."""

    prompts: list[Prompt]
    lengths: list[int]
    """Tokens of every row's prompt, those that are too long included."""

    @property
    def too_long(self) -> int:
        """Rows whose prompt is longer than the limit."""
        return len(self.lengths) - len(self.prompts)


def read_rows(source: PromptSource) -> list[Row]:
    """The source's rows, checked.

    Raises:
        UserError: if there are none, or a question is missing or malformed, or a column's name is taken.
    """
    rows = [Row(number=number, columns=columns) for number, columns in enumerate(source.rows())]
    if not rows:
        raise UserError(f"--data.source {source.name} has no rows; give a data set that is not empty")
    for row in rows:
        if fault := _fault(row):
            raise UserError(f"--data.source {source.name}, {source.place(row.number)}{fault}")
    return rows


def without_questions(rows: Sequence[Row], others: Sequence[Row]) -> list[Row]:
    """The rows whose question is none of the others'."""
    keys = {row.key for row in others}
    return [row for row in rows if row.key not in keys]


def build_prompts(
    rows: Sequence[Row],
    *,
    template: PromptTemplate,
    tokenizer: Any,
    source: str,
    max_prompt_length: int,
    examples: Sequence[Row] = (),
    report: bool = True,
) -> LoadedPrompts:
    """Render and encode every row; leave out prompts that are too long, count them and say so.

    Two rows with the same question stay two prompts, and so two groups.

    Args:
        rows: what to render.
        template: how.
        tokenizer: the policy's.
        source: name of the source.
        max_prompt_length: longest prompt, in tokens, special tokens and examples included.
        examples: rows that the template shows in front of each question.
        report: log what was left out (one rank is enough).

    Raises:
        UserError: if no prompt is left, the tokenizer makes nothing of a question, or a prompt begins twice.
    """
    shown = [row.columns for row in examples]
    prompts, lengths = [], []
    for row in rows:
        prompt = template.prompt(row.columns, tokenizer=tokenizer, examples=shown, source=source, number=row.number)
        if not prompt.token_ids:
            raise UserError(
                f"--data.source {source}, row {row.number}: the tokenizer of --model.policy knows no character of "
                f"{prompt.text[:40]!r}; ask in the model's own language"
            )
        if begins_twice(prompt.token_ids, tokenizer):
            raise UserError(
                f"--data.template: the prompt of row {row.number} of {source} begins with two {tokenizer.bos_token} "
                "tokens, which the model has never seen; leave the one out that --data.template.layout, a system text "
                "or the question writes"
            )
        lengths.append(len(prompt.token_ids))
        if lengths[-1] <= max_prompt_length:
            prompts.append(prompt)
    too_long = len(lengths) - len(prompts)
    if not prompts:
        raise UserError(
            f"all {len(lengths)} prompts of --data.source {source} are longer than --data.max_prompt_length "
            f"{max_prompt_length}: the shortest has {min(lengths)} tokens, the longest {max(lengths)}; raise the limit"
        )
    if too_long and report:
        log.warning(
            "%s: %d of %d prompts are longer than --data.max_prompt_length %d and are left out (longest: %d tokens)",
            source, too_long, len(lengths), max_prompt_length, max(lengths),
        )  # fmt: skip
    return LoadedPrompts(prompts=prompts, lengths=lengths)


def begins_twice(token_ids: Sequence[int], tokenizer: Any) -> bool:
    """True for a text that begins with two beginning-of-sequence tokens."""
    bos = tokenizer.bos_token_id
    return bos is not None and bos != tokenizer.eos_token_id and list(token_ids[:2]) == [bos, bos]


def require_same_on_ranks(prompts: Iterable[Prompt]) -> None:
    """Ranks that read other rows would take some twice and some never, or wait for each other's last batch.

    Raises:
        UserError: if they did.
    """
    digest = hashlib.blake2b()
    for prompt in prompts:
        digest.update(repr((prompt.source, prompt.row, prompt.token_ids)).encode())
    if not ranks.all_agree(digest.hexdigest()):
        raise UserError(
            "--data.source or --data.eval_sources: ranks read different rows; `rows()` must give the same ones in the "
            "same order in every process, so it may neither draw without a seed nor go through a set"
        )


def _fault(row: Row) -> str:
    """What is wrong with a row, to be said behind its place; empty if nothing is."""
    if "question" not in row.columns:
        return (
            f" has no column 'question'; its columns are: {', '.join(row.columns)}; "
            "name the right one by --data.source.question_column"
        )
    question = row.columns["question"]
    if isinstance(question, str):
        sound = bool(question.strip())
    else:
        sound = isinstance(question, list) and _is_conversation(question)
    if not sound:
        return (
            f": the question is {_shorten(question)}; it must be text that is not empty, or a list of chat "
            'messages {"role": ..., "content": ...} that ends with the user\'s'
        )
    taken = [column for column in TRAINER_KEYWORDS if column in row.columns]
    return f" has a column {taken[0]!r}, a name that rewards get from the trainer; rename the column" if taken else ""


def _is_conversation(messages: list[Message]) -> bool:
    return (
        all(isinstance(message, dict) for message in messages)
        and all(isinstance(message.get(key), str) for message in messages for key in ("role", "content"))
        and bool(messages)
        and messages[-1]["role"] == "user"
    )


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
