from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_lightning.data.arithmetic import (
    RunningTotals,
    build_tokenizer,
    is_step_by_step,
    running_total_accuracy,
    split_of,
)
from grpo_lightning.data.tiny_model import build_tiny_model
from grpo_lightning.errors import UserError


@pytest.fixture(scope="module")
def rows() -> list[dict[str, str]]:
    return RunningTotals(size=3000).rows()


def test_every_row_adds_up(rows: list[dict[str, str]]) -> None:
    for row in rows:
        start, *changes = [int(number) for number in re.findall(r"\d+", row["question"])]
        verbs = re.findall(r", (\w+) \d", row["question"])
        assert 3 <= len(changes) == len(verbs) <= 5
        total, work = start, ""
        for verb, amount in zip(verbs, changes, strict=True):
            sign = 1 if verb in ("finds", "gets", "buys", "wins") else -1
            assert 1 <= amount <= 9
            after = total + sign * amount
            assert 0 <= after <= 20
            work += f"{total}{'+' if sign > 0 else '-'}{amount}={after};"
            total = after
        assert row["answer"] == str(total)
        assert row["direct"] == f"#### {total}"
        assert row["solution"] == f"{work}#### {total}"
        assert row["question"].endswith(". How many?")


def test_same_seed_same_rows_other_seed_other_rows(rows: list[dict[str, str]]) -> None:
    assert RunningTotals(size=50).rows() == rows[:50]
    assert RunningTotals(size=50, seed=1).rows() != rows[:50]


def test_splits_share_no_question_whatever_the_seeds(rows: list[dict[str, str]]) -> None:
    train = {row["question"] for row in rows} | {row["question"] for row in RunningTotals(size=3000, seed=5).rows()}
    evaluated = {row["question"] for row in RunningTotals(split="eval", size=1000, seed=5).rows()}
    assert len(evaluated) == 1000
    assert not train & evaluated
    assert {split_of(question) for question in train} == {"train"}
    assert {split_of(question) for question in evaluated} == {"eval"}


def test_targets_turn_direct_at_the_given_share_and_row(rows: list[dict[str, str]]) -> None:
    mixed = RunningTotals(size=3000, direct_share=0.8, direct_from=1000).rows()
    assert [row["question"] for row in mixed] == [row["question"] for row in rows]
    assert all(row["target"] == row["solution"] for row in [*rows, *mixed[:1000]])
    direct = sum(row["target"] == row["direct"] for row in mixed[1000:])
    assert 0.77 < direct / 2000 < 0.83


def test_only_the_exact_total_after_the_last_marker_counts() -> None:
    completions = [
        "7+5=12;#### 12",
        "#### 12",
        "#### 7 #### 12",
        "#### 12 #### 7",
        "#### 012",
        "#### 12 apples",
        "12",
        "",
        "#### ",
    ]
    assert running_total_accuracy(completions=completions, answer=["12"] * 9) == [1, 1, 1, 0, 0, 0, 0, 0, 0]
    assert running_total_accuracy(completions=[[{"role": "assistant", "content": "#### 0"}]], answer=["0"]) == [1.0]
    assert RunningTotals().extract_answer("1+2=3;#### 3") == "3"
    assert RunningTotals().extract_answer("3") is None


@pytest.mark.parametrize(
    ("completion", "yes"),
    [
        ("7+5=12;#### 12", True),
        ("#### 12", False),
        ("#### 12 7+5=12;", False),
        ("7+5=12;", False),
        ("7=7;#### 7", False),
    ],
)
def test_step_by_step_means_work_before_the_answer(completion: str, yes: bool) -> None:
    assert is_step_by_step(completion) is yes


@pytest.mark.parametrize("arguments", [{"split": "test"}, {"size": 0}, {"direct_share": 1.5}])
def test_wrong_arguments(arguments: dict) -> None:
    with pytest.raises(UserError, match=next(iter(arguments))):
        RunningTotals(**arguments)


def test_tokenizer_gives_every_text_back_and_splits_numbers(rows: list[dict[str, str]]) -> None:
    tokenizer = build_tokenizer()
    assert len(tokenizer) <= 53
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    for row in rows[:500]:
        for column in ("question", "solution", "direct"):
            assert tokenizer.decode(tokenizer.encode(row[column])) == row[column]
    for text in ["#### 18\n\n  7 +5", " has has", "12", "Tom, Ann. Ben? #### ####"]:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("12+3")) == ["1", "2", "+", "3"]
    assert tokenizer.encode("xyz") == []


def test_tiny_model_folder_opens_as_any_other(tmp_path: Path, rows: list[dict[str, str]]) -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    folder = build_tiny_model(str(tmp_path / "tiny"), seed=3)
    assert torch.equal(torch.rand(1), expected), "the caller's random stream must not move"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = rows[0]["question"] + rows[0]["solution"]
    assert tokenizer.encode(text) == build_tokenizer().encode(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert 0.75e6 < sum(parameter.numel() for parameter in model.parameters()) < 0.85e6
    assert model.config.model_type == "qwen2"
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert (model.config.eos_token_id, model.config.pad_token_id) == (tokenizer.eos_token_id, tokenizer.pad_token_id)
    again = AutoModelForCausalLM.from_pretrained(build_tiny_model(str(tmp_path / "again"), seed=3))
    other = AutoModelForCausalLM.from_pretrained(build_tiny_model(str(tmp_path / "other"), seed=4))
    assert torch.equal(model.lm_head.weight, again.lm_head.weight)
    assert not torch.equal(model.lm_head.weight, other.lm_head.weight)
