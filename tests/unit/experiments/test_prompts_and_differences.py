"""Rows, prompts and comparisons that single experiments bring along."""

from __future__ import annotations

import pytest

from experiments.curriculum.levels import ByChanges
from experiments.prompting.examples import WithExamples
from experiments.prompting.template import BareTemplate
from experiments.strategies.run import differences
from grpo_lightning.data import RunningTotals
from grpo_lightning.data.arithmetic import build_tokenizer, is_step_by_step, running_total_accuracy

FIGURES = ("reward", "completions/mean_length", "val/accuracy", "grad_norm", "kl")


def test_every_other_row_follows_examples_and_answers_as_they_do() -> None:
    bare = RunningTotals(size=40, direct_share=0.5).rows()
    rows = WithExamples(size=40, direct_share=0.5).rows()
    assert rows[::2] == bare[::2]
    for number, (row, alone) in enumerate(zip(rows, bare, strict=True)):
        if number % 2 == 0:
            continue
        *examples, last = row["question"].split("\n\n")
        assert last == alone["question"]
        assert len(examples) == 2
        worked = [is_step_by_step(example.partition("? ")[2]) for example in examples]
        assert worked == [number % 4 == 1] * 2
        assert row["target"] == alone["solution" if number % 4 == 1 else "direct"]
        shown = {example["question"]: example["answer"] for example in bare if example is not alone}
        for example in examples:
            question, _, reply = example.partition("? ")
            assert running_total_accuracy(completions=[reply], answer=[shown[f"{question}?"]]) == [1.0]


def test_the_vocabulary_covers_every_prompt_and_none_of_the_zero_shot_sentence() -> None:
    tokenizer = build_tokenizer()
    for row in WithExamples(size=40).rows():
        text = row["question"] + row["target"]
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert len(tokenizer.encode(text)) < 256
    assert tokenizer.decode(tokenizer.encode("Let's think step by step.")).strip() == "."
    first, second, asked = RunningTotals(size=3).rows()
    prompt = BareTemplate(style="examples").prompt(asked, tokenizer=tokenizer, examples=[first, second])
    shown = [f"{row['question']} {row['direct']}" for row in (first, second)]
    assert prompt.text == "\n\n".join([*shown, asked["question"]])


def test_the_level_of_a_question_is_its_changes() -> None:
    rows = ByChanges(split="eval", size=30).rows()
    assert [row["level"] for row in rows] == [row["question"].count(",") for row in rows]
    assert {row["level"] for row in rows} == {3, 4, 5}


def test_runs_are_compared_where_they_are_furthest_apart() -> None:
    def steps(*rows: tuple[str, ...]) -> list[dict[str, str]]:
        return [dict(zip(FIGURES, row, strict=True)) for row in rows]

    alone = steps(("0.5", "8", "", "2.0", "0.0"), ("", "", "0.25", "4.0", "0.1"))
    other = steps(("0.25", "8", "", "2.1", "0.0"), ("", "", "0.25", "4.1", "0.11"))
    assert differences(alone, other) == pytest.approx(
        {"reward": 0.25, "completions/mean_length": 0, "val/accuracy": 0, "grad_norm": 0.05, "kl": 0.1}
    )
    assert set(differences(alone, alone).values()) == {0.0}
