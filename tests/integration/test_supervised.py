"""Supervised fine-tuning through the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from grpo_lightning import policy_module
from grpo_lightning.data import RunningTotals
from grpo_lightning.engines.vllm import VLLMEngine
from grpo_lightning.errors import UserError
from tests.integration.command_line import VLLM, fit, grpo, jsonl, rows, run, totals, written

pytestmark = pytest.mark.integration


def _sft(policy: Path, folder: Path, **changes: Any) -> dict[str, Any]:
    config = grpo(policy, folder, **changes)
    arguments = {"policy": str(policy), "lr": 3e-3, "target_column": "solution"}
    config["model"] = {"class_path": "grpo_lightning.SFTModule", "init_args": arguments}
    del config["rollout"]["rewards"]
    return config


def by_hand(model: PreTrainedModel, tokenizer: Any, questions: list[dict[str, str]], column: str) -> float:
    """Every token of every target counts the same, prompts count nothing."""
    total, tokens = 0.0, 0
    for row in questions:
        prompt = tokenizer.encode(row["question"], add_special_tokens=False)
        target = [*tokenizer.encode(row[column], add_special_tokens=False), tokenizer.eos_token_id]
        with torch.no_grad():
            logits = model(torch.tensor([prompt + target])).logits[0, len(prompt) - 1 : -1]
        total += torch.nn.functional.cross_entropy(logits, torch.tensor(target), reduction="sum").item()
        tokens += len(target)
    return total / tokens


def test_the_loss_is_that_of_the_target_alone_and_falls_and_answers_are_evaluated(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = _sft(tiny, tmp_path / "run", data__source=totals("train", 256))
    config["data"] |= {"prompts_per_step": 16, "shuffle": False}
    config["trainer"] |= {"max_steps": 16, "limit_val_batches": 1.0, "val_check_interval": 8}
    fit(capsys, config)
    steps = rows(tmp_path / "run")
    losses = [float(row["loss"]) for row in steps]
    assert len(losses) == 16
    assert sum(losses[-4:]) < 0.8 * sum(losses[:4])
    tokenizer, model = AutoTokenizer.from_pretrained(tiny), AutoModelForCausalLM.from_pretrained(tiny)
    first = RunningTotals(size=16).rows()
    assert losses[0] == pytest.approx(by_hand(model, tokenizer, first, "solution"), rel=1e-5)
    targets = [tokenizer.encode(row["solution"], add_special_tokens=False) for row in first]
    assert float(steps[0]["tokens"]) == sum(len(target) + 1 for target in targets)

    # Held-out targets are scored beside the answers; the last figure is that of the exported policy.
    assert [row["step"] for row in steps if row["val/running_totals/accuracy"]] == ["8", "16"]
    assert float(steps[7]["val/loss"]) > float(steps[15]["val/loss"])
    trained, held_out = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "hf"), RunningTotals(split="eval")
    expected = pytest.approx(by_hand(trained, tokenizer, held_out.rows()[:6], "solution"), rel=1e-5)
    assert float(steps[15]["val/loss"]) == float(steps[15]["val/running_totals/loss"]) == expected


def test_neither_the_split_nor_packing_changes_anything(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    split = {"micro_batch_tokens": 100}
    ways = {"whole": {}, "split": split, "padded": split | {"packing": False}}
    for name, arguments in ways.items():
        config = _sft(tiny, tmp_path / name)
        config["model"]["init_args"] |= arguments
        fit(capsys, config)
    for name in ("split", "padded"):
        for row, again in zip(rows(tmp_path / "whole"), rows(tmp_path / name), strict=True):
            for figure in ("loss", "grad_norm", "entropy"):
                assert float(again[figure]) == pytest.approx(float(row[figure]), rel=1e-4), (name, figure)


def test_what_is_never_sampled_is_not_checked(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an evaluation, no sampler is needed and completions may be of any length; with one, both are checked."""

    def no_vllm(self: VLLMEngine, **kwargs: Any) -> None:
        raise UserError("vLLM is not installed")

    monkeypatch.setattr(VLLMEngine, "check", no_vllm)
    config = _sft(tiny, tmp_path / "run", rollout__engine=VLLM, rollout__max_completion_length=9999)
    fit(capsys, config)
    for changes, fragment in (
        ({"limit_val_batches": 1}, "--evaluation.max_completion_length 9999"),
        ({"limit_val_batches": 1, "--evaluation.max_completion_length": 8}, "vLLM is not installed"),
    ):
        flags = [f"{name if name[0] == '-' else '--trainer.' + name}={value}" for name, value in changes.items()]
        outcome = run(capsys, "fit", "--config", written(config, tmp_path / "config.yaml"), *flags)
        assert fragment in outcome.mistake
    del config["data"]["eval_sources"]
    config["trainer"]["limit_val_batches"] = 1.0
    fit(capsys, config)


@pytest.mark.parametrize(
    ("lines", "fragments"),
    [
        (
            [{"question": "Tom has 7", "answer": "7", "solution": "#### 7"}] * 7 + [{"question": "Tom", "answer": "7"}],
            ["--model.target_column solution", "row 7 of questions", "question, answer"],
        ),
        (
            [{"question": "Tom has 7", "answer": "7", "solution": "7+" * 127}] * 8,
            ["--model.target_column solution", "row 0 of questions", "4 + 255 tokens", "256"],
        ),
    ],
    ids=["missing", "too long"],
)
def test_wrong_targets_are_found_before_the_weights_are_loaded(
    tiny: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    lines: list[dict[str, str]],
    fragments: list[str],
) -> None:
    monkeypatch.setattr(policy_module, "load_policy", lambda *a, **k: pytest.fail("the weights were loaded"))
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = _sft(tiny, tmp_path / "run", data__source=jsonl(file))
    mistake = run(capsys, "fit", "--config", written(config, tmp_path / "config.yaml")).mistake
    assert all(fragment in mistake for fragment in fragments), mistake
    assert not (tmp_path / "run").exists()
