"""``validate``, ``test``, ``predict`` and evaluation during ``fit``."""

from __future__ import annotations

import json
import re
from collections import Counter
from math import comb
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_lightning.data import RunningTotals
from tests.integration.command_line import REWARDS, fit, grpo, jsonl, listing, records, rows, run, totals, written

pytestmark = pytest.mark.integration

DIGIT = f"{REWARDS}.begins_with_a_digit"


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "hf" / "model.safetensors")


def _equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 problems with a level and a subject."""
    path = tmp_path_factory.mktemp("data") / "problems.jsonl"
    lines = [
        {
            "question": row["question"],
            "answer": row["answer"],
            "level": i % 3 + 1,
            "subject": ["sums", "stories"][i % 2],
        }
        for i, row in enumerate(RunningTotals(split="eval", size=24, seed=5).rows())
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def evaluated(tiny: Path, tmp_path: Path, problems: Path) -> dict[str, Any]:
    """Two sources, greedy answers and four samples; a right answer is one that begins with a digit."""
    return grpo(
        tiny,
        tmp_path / "run",
        data__eval_sources=[totals("eval", 6), jsonl(problems, name="graded", correctness=DIGIT)],
        data__eval_batch_size=5,
        evaluation__samples=4,
        evaluation__temperature=2.0,
        trainer__limit_val_batches=1.0,
    )


@pytest.mark.parametrize("command", ["validate", "test"])
def test_figures_are_those_of_the_written_samples(
    evaluated: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    stage = {"validate": "val", "test": "test"}[command]
    outcome = run(capsys, command, "--config", written(evaluated, tmp_path / "config.yaml"))
    assert outcome.code == 0, outcome.err
    first, second = records(tmp_path / "run" / "evaluations.jsonl")
    assert (first["source"], first["problems"], first["stage"]) == ("running_totals", 6, stage)
    assert (second["source"], second["problems"], second["command"]) == ("graded", 24, command)
    assert f"{stage} graded: accuracy" in outcome.err
    assert outcome.err.count("evaluation: greedy answers and 4 samples at temperature 2, ") == 1

    answers = records(tmp_path / "run" / "samples" / f"{stage}_graded.jsonl")
    assert len(answers) == 24 * 5
    assert all(answer["correct"] == answer["completion"][:1].isdigit() for answer in answers)
    greedy = [answer["correct"] for answer in answers if answer["greedy"]]
    right = [[a["correct"] for a in answers if a["row"] == row and not a["greedy"]] for row in range(24)]
    counts = [sum(verdicts) for verdicts in right]
    assert len(greedy) == 24
    assert 0 < sum(counts) < 96
    assert second["accuracy"] == pytest.approx(sum(greedy) / 24)
    for k in (1, 2, 4):
        expected = sum(1 - comb(4 - c, k) / comb(4, k) for c in counts) / 24
        assert second[f"pass@{k}"] == pytest.approx(expected)
    assert second["pass@1"] <= second["pass@2"] <= second["pass@4"]
    low, high = second["accuracy_interval"]
    assert low <= second["accuracy"] <= high

    level = [a["correct"] for a in answers if a["greedy"] and a["row"] % 3 == 1]
    assert second["level=2/accuracy"] == pytest.approx(sum(level) / 8)
    subject = [a["correct"] for a in answers if a["greedy"] and a["row"] % 2 == 0]
    assert second["subject=sums/accuracy"] == pytest.approx(sum(subject) / 12)
    lengths = [a["tokens"] for a in answers if a["greedy"]]
    assert second["mean_length"] == pytest.approx(sum(lengths) / 24)


def test_majority_counts_answers_not_samples(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = grpo(tiny, tmp_path / "run", evaluation__samples=8, trainer__limit_val_batches=1.0)
    config["data"]["eval_sources"] = [totals("eval", 16)]
    assert run(capsys, "validate", "--config", written(config, tmp_path / "config.yaml")).code == 0
    (line,) = records(tmp_path / "run" / "evaluations.jsonl")
    answers = records(tmp_path / "run" / "samples" / "val_running_totals.jsonl")
    won = 0.0
    for row in range(16):
        drawn = [a for a in answers if a["row"] == row and not a["greedy"]]
        votes = Counter(a["completion"].split("####")[-1].strip() for a in drawn if "####" in a["completion"])
        votes = Counter({vote: n for vote, n in votes.items() if vote.isdigit() and (vote == "0" or vote[0] != "0")})
        won += bool(votes) and votes.most_common(1)[0][0] == drawn[0]["answer"]
    assert line["maj@8"] == pytest.approx(won / 16)


def test_the_same_answers_whatever_the_batches(
    evaluated: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for size in (5, 64):
        evaluated["data"]["eval_batch_size"] = size
        assert run(capsys, "test", "--config", written(evaluated, tmp_path / "config.yaml")).code == 0
        found.append(records(tmp_path / "run" / "samples" / "test_graded.jsonl"))
    assert found[0] == found[1]


def test_validate_without_a_greedy_pass(
    evaluated: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = written(evaluated, tmp_path / "config.yaml")
    assert run(capsys, "validate", "--config", config, "--evaluation.greedy=false", "--data.eval_limit=10").code == 0
    line = records(tmp_path / "run" / "evaluations.jsonl")[1]
    assert line["problems"] == 10
    assert line["accuracy"] == line["pass@1"]


def test_predict_writes_completions_with_scores(
    evaluated: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluated["rollout"]["rewards"] = [DIGIT, f"{REWARDS}.share_of_digits"]
    outcome = run(capsys, "predict", "--config", written(evaluated, tmp_path / "config.yaml"))
    assert outcome.code == 0, outcome.err
    lines = records(tmp_path / "run" / "predictions.jsonl")
    assert len(lines) == 30 * 5
    assert [line["source"] for line in lines[::150]] == ["running_totals"]
    for line in lines:
        assert line["rewards"]["begins_with_a_digit"] == float(line["completion"][:1].isdigit())
        assert set(line["rewards"]) == {"begins_with_a_digit", "share_of_digits"}
        # Each source has its own rule.
        solved = line["completion"].split("####")[-1].strip() == line["answer"] and "####" in line["completion"]
        assert line["correct"] == (line["completion"][:1].isdigit() if line["source"] == "graded" else solved)
        assert line["answer"].isdigit()
    assert sum(line["greedy"] for line in lines) == 30


def test_predict_answers_one_question(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = grpo(tiny, tmp_path / "run")
    del config["data"]["eval_sources"]
    question = "Tom has 7 apples, finds 5. How many?"
    outcome = run(capsys, "predict", "--config", written(config, tmp_path / "config.yaml"), "--prompt", question)
    assert outcome.code == 0, outcome.err
    tokenizer, model = AutoTokenizer.from_pretrained(tiny), AutoModelForCausalLM.from_pretrained(tiny)
    ids = tokenizer(question, return_tensors="pt")
    answer = model.generate(**ids, max_new_tokens=8, do_sample=False)[0, ids["input_ids"].shape[1] :].tolist()
    answer = answer[: answer.index(tokenizer.eos_token_id)] if tokenizer.eos_token_id in answer else answer
    greedy = tokenizer.decode(answer) + "\n"
    assert outcome.out == greedy
    # Samples beside it are not printed; without it, all of them are, numbered.
    arguments = ["--config", str(tmp_path / "config.yaml"), "--prompt", question, "--evaluation.samples=3"]
    assert run(capsys, "predict", *arguments).out == greedy
    out = run(capsys, "predict", *arguments, "--evaluation.greedy=false").out
    first, second, third = re.fullmatch(
        r"\[1 of 3\]\n(.*)\n\n\[2 of 3\]\n(.*)\n\n\[3 of 3\]\n(.*)\n", out, re.DOTALL
    ).groups()
    assert len({first, second, third}) > 1
    assert not (tmp_path / "run" / "predictions.jsonl").exists()


def test_whose_answers_they_are_is_told(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run's own configuration names the policy that it began with."""
    fit(capsys, grpo(tiny, tmp_path / "run", trainer__max_steps=1))
    trained = tmp_path / "run" / "hf"
    for command in (["validate"], ["predict", "--prompt=1 + 1"]):
        own = [*command, "--config", str(tmp_path / "run" / "config.yaml"), "--trainer.limit_val_batches=1"]
        told = f"policy: {tiny}; the one that the run in {tmp_path / 'run'} trained is --model.policy {trained}\n"
        assert run(capsys, *own).err.count(told) == 1
        assert f"policy: {trained}\n" in run(capsys, *own, f"--model.policy={trained}").err
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    assert f"policy: {tiny}, with the weights of {last}\n" in run(capsys, *own, f"--ckpt_path={last}").err


def test_evaluation_leaves_training_undisturbed(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = []
    for interval in (None, 1, 2):
        folder = tmp_path / f"every {interval}"
        config = grpo(tiny, folder, trainer__max_steps=4, evaluation__samples=2)
        if interval:
            config["trainer"] |= {"limit_val_batches": 1.0, "val_check_interval": interval, "num_sanity_val_steps": -1}
        fit(capsys, config)
        folders.append(folder)
    without, every, second = folders
    assert not _equal(_weights(without), load_file(tiny / "model.safetensors"))
    assert _equal(_weights(without), _weights(every))
    assert _equal(_weights(without), _weights(second))
    evaluated_at = [record["step"] for record in records(every / "evaluations.jsonl")]
    assert evaluated_at == [0, 1, 2, 3, 4]
    assert [record["step"] for record in records(second / "evaluations.jsonl")] == [0, 2, 4]
    # The same weights were asked the same: whatever was evaluated before does not matter.
    at_2 = [records(folder / "samples" / "val_running_totals_step000002.jsonl") for folder in (every, second)]
    assert at_2[0] == at_2[1]
    figures = {row["step"]: row["val/accuracy"] for row in rows(every)}
    assert list(figures) == ["0", "1", "2", "3", "4"]
    assert all(figures.values())


@pytest.mark.parametrize(("steps", "recorded_at"), [(2, [2]), (5, [0, 2]), (-1, [0, 2])])
def test_a_sanity_check_of_a_few_batches_is_no_evaluation(
    evaluated: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], steps: int, recorded_at: list[int]
) -> None:
    """24 and 6 problems in batches of 5."""
    evaluated["trainer"] |= {"val_check_interval": 2, "num_sanity_val_steps": steps}
    fit(capsys, evaluated)
    folder = tmp_path / "run"
    found = records(folder / "evaluations.jsonl")
    assert [(line["step"], line["problems"]) for line in found] == [(at, n) for at in recorded_at for n in (6, 24)]
    assert [row["step"] for row in rows(folder) if row["val/accuracy"]] == [str(at) for at in recorded_at]
    assert len(list((folder / "samples").glob("val_graded_*"))) == len(recorded_at)


def test_golds_that_cannot_be_read_are_told(
    evaluated: dict[str, Any], problems: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.jsonl"
    lines = records(problems)
    lines[3]["answer"] = lines[7]["answer"] = "\\frac{1}{"
    lines[4]["level"] = None
    broken.write_text("".join(json.dumps(line) + "\n" for line in lines))
    evaluated["data"]["eval_sources"] = [jsonl(broken, name="broken")]
    outcome = run(capsys, "validate", "--config", written(evaluated, tmp_path / "config.yaml"))
    assert outcome.code == 0, outcome.err
    (line,) = records(tmp_path / "run" / "evaluations.jsonl")
    assert (line["problems"], line["unreadable_golds"]) == (22, 2)
    assert outcome.err.count("val broken: 2 problems are left out, since their gold answer cannot be read") == 1
    assert sorted(name for name in line if name.startswith("level=")) == [f"level={i}/accuracy" for i in (1, 2, 3)]
    assert line["pass@1_interval"][0] <= line["pass@1"] <= line["pass@1_interval"][1]


def test_callbacks_that_watch_the_accuracy(
    evaluated: dict[str, Any], problems: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluated["data"]["eval_sources"] = [jsonl(problems, name="graded", correctness=f"{REWARDS}.never")]
    evaluated["trainer"] |= {
        "max_steps": 4,
        "val_check_interval": 1,
        "callbacks": [
            {
                "class_path": "lightning.pytorch.callbacks.ModelCheckpoint",
                "init_args": {"monitor": "val/accuracy", "mode": "max", "filename": "best-{step}"},
            },
            {
                "class_path": "lightning.pytorch.callbacks.ModelCheckpoint",
                "init_args": {"every_n_train_steps": 2, "save_top_k": -1, "filename": "every-{step}"},
            },
            {
                "class_path": "lightning.pytorch.callbacks.EarlyStopping",
                "init_args": {"monitor": "val/accuracy", "mode": "max", "patience": 2},
            },
        ],
    }
    fit(capsys, evaluated)
    folder = tmp_path / "run"
    # 0% at each evaluation: no better one after the first, so the third ends the run.
    assert [row["step"] for row in rows(folder)] == ["1", "2", "3"]
    names = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert names == ["best-step=1.ckpt", "every-step=2.ckpt"]


def test_the_export_answers_like_the_trained_policy(
    evaluated: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, export = tmp_path / "run", tmp_path / "run" / "hf"
    evaluated["trainer"] |= {"max_steps": 4, "val_check_interval": 4}
    evaluated["model"]["init_args"]["lr"] = 3e-2
    fit(capsys, evaluated)
    model, report = AutoModelForCausalLM.from_pretrained(export, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert model.config.tie_word_embeddings
    AutoTokenizer.from_pretrained(export)
    assert "4 optimizer steps" in (export / "README.md").read_text()

    run_files = listing(folder)
    config = written(evaluated, tmp_path / "config.yaml")
    assert run(capsys, "validate", "--config", config, "--model.policy", str(export)).code == 0
    lines = records(folder / "evaluations.jsonl")
    for during, after in zip(lines[:2], lines[2:], strict=True):
        assert (during["command"], during["step"], after["command"]) == ("fit", 4, "validate")
        assert after["policy"] == str(export)
        for name in ("accuracy", "pass@1", "pass@4", "mean_length"):
            assert during[name] == after[name]
    assert lines[1]["pass@1"] > 0
    # What the run wrote is still there as it was; the evaluation only adds.
    now = listing(folder)
    changed = {name for name, content in run_files.items() if now[name] != content}
    assert changed == {"evaluations.jsonl"}
    assert now["evaluations.jsonl"].startswith(run_files["evaluations.jsonl"])

    # So does the checkpoint.
    checkpoint = str(folder / "checkpoints" / "last.ckpt")
    assert run(capsys, "validate", "--config", config, "--ckpt_path", checkpoint).code == 0
    line = records(folder / "evaluations.jsonl")[5]
    assert (line["step"], line["checkpoint"], line["pass@1"]) == (4, checkpoint, lines[1]["pass@1"])
