"""Supervised fine-tuning through the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

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


def test_the_loss_is_that_of_the_target_alone_and_falls(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = _sft(tiny, tmp_path / "run", data__source=totals("train", 256))
    config["data"] |= {"prompts_per_step": 16, "shuffle": False}
    config["trainer"]["max_steps"] = 16
    fit(capsys, config)
    losses = [float(row["loss"]) for row in rows(tmp_path / "run")]
    assert len(losses) == 16
    assert sum(losses[-4:]) < 0.8 * sum(losses[:4])

    # The first batch by hand: every token of every target counts the same, prompts count nothing.
    tokenizer, model = AutoTokenizer.from_pretrained(tiny), AutoModelForCausalLM.from_pretrained(tiny)
    total, tokens = 0.0, 0
    for row in RunningTotals(size=16).rows():
        prompt = tokenizer.encode(row["question"], add_special_tokens=False)
        target = [*tokenizer.encode(row["solution"], add_special_tokens=False), tokenizer.eos_token_id]
        with torch.no_grad():
            logits = model(torch.tensor([prompt + target])).logits[0, len(prompt) - 1 : -1]
        total += torch.nn.functional.cross_entropy(logits, torch.tensor(target), reduction="sum").item()
        tokens += len(target)
    assert losses[0] == pytest.approx(total / tokens, rel=1e-5)


def test_the_split_changes_nothing(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, tokens in (("whole", 16384), ("split", 100)):
        config = _sft(tiny, tmp_path / name)
        config["model"]["init_args"]["micro_batch_tokens"] = tokens
        fit(capsys, config)
    for row, again in zip(rows(tmp_path / "whole"), rows(tmp_path / "split"), strict=True):
        for name in ("loss", "grad_norm", "entropy"):
            assert float(again[name]) == pytest.approx(float(row[name]), rel=1e-4), name


def test_evaluation_during_supervised_training(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit(capsys, _sft(tiny, tmp_path / "run", trainer__limit_val_batches=1.0, trainer__val_check_interval=1))
    assert all(row["val/running_totals/accuracy"] for row in rows(tmp_path / "run"))


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
