"""Supervised rows that show a model what examples in a prompt are for."""

from __future__ import annotations

import random
from typing import Any

from experiments.prompting.template import BareTemplate
from grpo_lightning.data import RunningTotals
from grpo_lightning.data.arithmetic import build_tokenizer

SHOWN = 2
"""Examples in a prompt: with more, prompt and answer would not fit into the tiny model's 256 tokens."""


class WithExamples(RunningTotals):
    """Running totals, of which every other row follows examples and answers as they do.

    Even rows are the quickstart's: the question alone, with the target that ``direct_share`` gives it. Odd ones come
    after ``SHOWN`` other questions with their answers, all direct or all worked; their target is of that kind.
    """

    def rows(self) -> list[dict[str, Any]]:
        rows = super().rows()
        draws = random.Random(f"examples, {self.split}, {self.seed}")
        tokenizer = build_tokenizer()
        for number, row in enumerate(bare := list(rows)):
            if number % 2:
                worked = number % 4 == 1
                template = BareTemplate(style="worked_examples" if worked else "examples", examples=SHOWN)
                others = [other for other in draws.sample(bare, SHOWN + 1) if other is not row][:SHOWN]
                text = template.prompt(row, tokenizer=tokenizer, examples=others).text
                rows[number] = {**row, "question": text, "target": row["solution" if worked else "direct"]}
        return rows
