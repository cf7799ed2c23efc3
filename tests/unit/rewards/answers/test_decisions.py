"""Every line of the table of decisions in experiments/answer_checking/README.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from grpo_lightning.rewards import math_accuracy

PAGE = Path(__file__).resolve().parents[4] / "experiments" / "answer_checking" / "README.md"
LINE = re.compile(r"^\| ([^|]+) \| `([^`]+)` \| (text: )?`([^|]+)` \| (yes|no) \|", re.MULTILINE)


@pytest.fixture(scope="module")
def decisions():
    return LINE.findall(PAGE.read_text(encoding="utf-8"))


def test_every_decision_holds(decisions):
    assert len(decisions) >= 60
    said = [answer if text else f"Hence $\\boxed{{{answer}}}$." for _, _, text, answer, _ in decisions]
    scores = math_accuracy(said, [gold for _, gold, _, _, _ in decisions])
    expected = [float(verdict == "yes") for *_, verdict in decisions]
    assert [line for line, a, b in zip(decisions, scores, expected, strict=True) if a != b] == []
