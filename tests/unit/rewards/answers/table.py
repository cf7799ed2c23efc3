"""The table of answers in ``table.json``: 5,000 verdicts over every kind of answer, right and wrong ones.

``boxed`` rows are a gold answer, contents of a box that are right, and contents that are wrong; ``completions`` rows
are a gold answer, a whole completion and its verdict.
"""

from __future__ import annotations

import json
from pathlib import Path

TABLE = Path(__file__).with_name("table.json")


def table_cases():
    """Gold answer, completion, verdict."""
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    boxed = [
        (gold, f"Therefore the result is $\\boxed{{{answer}}}$.", float(right))
        for gold, good, bad in table["boxed"]
        for right, answers in ((1, good), (0, bad))
        for answer in answers
    ]
    return boxed + [(gold, completion, float(verdict)) for gold, completion, verdict in table["completions"]]


def wrong_verdicts(cases):
    """The cases that ``math_accuracy`` decides differently."""
    from grpo_lightning.rewards import math_accuracy

    scores = math_accuracy(completions=[case[1] for case in cases], answer=[case[0] for case in cases])
    return [(*case, score) for case, score in zip(cases, scores, strict=True) if score != case[2]]
