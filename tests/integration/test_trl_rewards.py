"""TRL's reward functions run unchanged, by dotted path, through ``fit``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from grpo_lightning.data import RunningTotals
from tests.integration import trl_rewards
from tests.integration.command_line import fit, grpo, jsonl, records, rows, run, written

pytestmark = pytest.mark.integration

TRL = "tests.integration.trl_rewards"


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What ``reward_digits`` is called with, which a worker process would keep for itself."""
    monkeypatch.setattr(trl_rewards.reward_digits, "inline", True, raising=False)
    trl_rewards.SEEN.clear()
    return trl_rewards.SEEN


def test_plain_prompts(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], seen: list[dict[str, Any]]
) -> None:
    names = ["reward_len", "reward_digits", "reward_some", "reward_async"]
    config = grpo(tiny, tmp_path / "run", samples__every_n_rollouts=1)
    config["rollout"] |= {"rewards": [f"{TRL}.{name}" for name in names], "reward_weights": [1.0, 0.5, 2.0, 1.0]}
    fit(capsys, config)

    first, second = seen
    assert (first["step"], second["step"]) == (0, 1)
    assert {"solution", "direct", "question"} <= set(first["others"])
    assert {len(first[key]) for key in ("prompts", "completions", "completion_ids", "answer")} == {16}
    assert first["prompts"][0] == first["prompts"][3] != first["prompts"][4]  # groups of four, prompt by prompt
    assert all(isinstance(text, str) for text in first["prompts"] + first["completions"])
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    for ids, text in zip(first["completion_ids"], first["completions"], strict=True):
        assert tokenizer.decode([i for i in ids if i != tokenizer.eos_token_id]) == text

    for number, call in enumerate(seen):
        lines = records(tmp_path / "run" / "samples" / f"rollout_{number + 1:06d}.parquet")
        assert [line["completion"] for line in lines] == call["completions"]
        assert [line["golden_answer"] for line in lines] == call["answer"]
        digits = [sum(c.isdigit() for c in text) for text in call["completions"]]
        assert [line["digits"] for line in lines] == digits
        row = rows(tmp_path / "run")[number]
        assert float(row["digits/most"]) == max(digits)
        assert float(row["rewards/reward_digits/mean"]) == pytest.approx(sum(digits) / 16)
        assert float(row["rewards/reward_some/mean"]) == 1.0
        assert float(row["rewards/reward_async/mean"]) == 0.5
        # A reward that does not apply adds nothing; weights are per reward.
        totals = [
            -abs(4 - len(text)) / 4 + 0.5 * count + (0.0 if i % 2 else 2.0) + 0.5
            for i, (text, count) in enumerate(zip(call["completions"], digits, strict=True))
        ]
        assert [line["reward"] for line in lines] == pytest.approx(totals)
        assert float(row["reward"]) == pytest.approx(sum(totals) / 16)


def test_chat_prompts(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], seen: list[dict[str, Any]]
) -> None:
    """Prompts and completions come as messages."""
    chat = tmp_path / "chat"
    chat.mkdir()
    for file in tiny.iterdir():
        (chat / file.name).write_bytes(file.read_bytes())
    (chat / "chat_template.jinja").write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    questions = tmp_path / "questions.jsonl"
    with questions.open("w") as file:
        for row in RunningTotals(size=8).rows():
            messages = [{"role": "user", "content": row["question"]}]
            file.write(json.dumps({"question": messages, "answer": row["answer"]}) + "\n")
    config = grpo(chat, tmp_path / "run", data__source=jsonl(questions))
    config["rollout"]["rewards"] = [f"{TRL}.reward_digits"]
    fit(capsys, config)
    call = seen[0]
    assert call["prompts"][0][-1]["role"] == "user"
    assert call["prompts"][0][-1]["content"].startswith(("Tom", "Ann", "Ben", "Eva", "Max", "Mia", "Sam", "Zoe"))
    assert all([m["role"] for m in completion] == ["assistant"] for completion in call["completions"])


def test_a_callable_object_from_yaml(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reward = {"class_path": f"{TRL}.WeightedLength", "init_args": {"scale": 0.25}}
    config = grpo(tiny, tmp_path / "run", rollout__rewards=[reward], samples__every_n_rollouts=1)
    fit(capsys, config)
    for line in records(tmp_path / "run" / "samples" / "rollout_000001.parquet"):
        assert line["rewards/weighted_length"] == 0.25 * len(line["completion"])


def test_arrays_and_rewards_that_do_not_apply_are_written_as_nulls(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = grpo(tiny, tmp_path / "run", samples__every_n_rollouts=1, trainer__max_steps=1)
    config["rollout"]["rewards"] = [f"{TRL}.reward_arrays", f"{TRL}.reward_some"]
    fit(capsys, config)
    lines = records(tmp_path / "run" / "samples" / "rollout_000001.parquet")
    assert [line["length"] for line in lines] == [len(line["completion"]) for line in lines]
    assert [line["share"] for line in lines] == pytest.approx([line["rewards/reward_arrays"] for line in lines])
    assert lines[0]["places"] == "[0, 1]"
    assert [line["rewards/reward_some"] for line in lines] == [1.0, None] * 8

    # The same functions score what `predict` writes.
    config["trainer"]["default_root_dir"] = str(tmp_path / "predicted")
    outcome = run(capsys, "predict", "--config", written(config, tmp_path / "config.yaml"))
    assert outcome.code == 0, outcome.err
    file = tmp_path / "predicted" / "predictions.jsonl"
    assert "NaN" not in file.read_text("utf-8")
    assert [line["rewards"]["reward_some"] for line in records(file)] == [1.0, None] * 3
