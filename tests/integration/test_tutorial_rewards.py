"""Tutorials' reward functions and the library's configured ones, from YAML, on chat prompts through ``fit``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from grpo_lightning import rewards
from grpo_lightning.data import RunningTotals
from tests.integration.command_line import fit, grpo, jsonl, records, rows

pytestmark = pytest.mark.integration

TUTORIAL = "tests.integration.tutorial_rewards"
LIBRARY = "grpo_lightning.rewards"


@pytest.fixture
def chat(tiny: Path, tmp_path: Path) -> Path:
    """The tiny model with a chat template."""
    folder = tmp_path / "chat"
    folder.mkdir()
    for file in tiny.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    return folder


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    """Questions as chat messages."""
    file = tmp_path / "questions.jsonl"
    with file.open("w") as stream:
        for row in RunningTotals(size=8).rows():
            messages = [{"role": "user", "content": row["question"]}]
            stream.write(json.dumps({"question": messages, "answer": row["answer"]}) + "\n")
    return file


def test_tutorials_signatures(chat: Path, questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["correctness_reward_func", "digits_reward_func", "layout_reward_func", "columns_reward_func"]
    names += ["positional_reward_func", "short_reward", "partial_reward"]
    config = grpo(
        chat, tmp_path / "run", data__source=jsonl(questions), samples__every_n_rollouts=1, trainer__max_steps=1
    )
    config["rollout"]["rewards"] = [f"{TUTORIAL}.{name}" for name in names]
    fit(capsys, config)
    lines = records(tmp_path / "run" / "samples" / "rollout_000001.parquet")
    assert len(lines) == 16
    for line in lines:
        scores = {name.removeprefix("rewards/"): s for name, s in line.items() if name.startswith("rewards/")}
        assert scores["digits_reward_func"] == 0.5 * any(c.isdigit() for c in line["completion"])
        assert scores["columns_reward_func"] == len(line["answer"])
        assert scores["length_reward"] == scores["_limited"] - 1.0  # a partial has its function's name
        assert scores["positional_reward_func"] * 8 <= 4 or scores["length_reward"] == -1.0
        assert line["reward"] == pytest.approx(sum(scores.values()))


def test_configured_rewards_of_the_library(
    chat: Path, questions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = grpo(
        chat, tmp_path / "run", data__source=jsonl(questions), samples__every_n_rollouts=1, trainer__max_steps=1
    )
    config["rollout"]["rewards"] = [
        f"{LIBRARY}.xml_count",
        f"{LIBRARY}.exact_answer",
        {
            "class_path": f"{LIBRARY}.CosineLength",
            "init_args": {"max_length": 8, "wrong_short": 0.0, "correctness": f"{LIBRARY}.exact_answer"},
        },
        {"class_path": f"{LIBRARY}.KimiLength", "init_args": {"correctness": f"{LIBRARY}.gsm8k_accuracy"}},
        {"class_path": f"{LIBRARY}.SoftOverlongPunishment", "init_args": {"max_length": 8, "cache_length": 4}},
        {"class_path": f"{LIBRARY}.RepetitionPenalty", "init_args": {"n": 2, "variant": "tokens"}},
        {"class_path": f"{LIBRARY}.LanguageConsistency", "init_args": {"language": "en"}},
        {"class_path": f"{LIBRARY}.ReasoningKeywords", "init_args": {"keywords": ["so", "then"]}},
        {"class_path": f"{LIBRARY}.TieredAccuracy"},
        {"class_path": f"{LIBRARY}.ShapedAccuracy", "init_args": {"variant": "documented"}},
    ]
    fit(capsys, config)
    figures = rows(tmp_path / "run")[0]
    names = ["xml_count", "exact_answer", "cosine_length", "kimi_length", "soft_overlong_punishment"]
    names += ["repetition_penalty", "language_consistency", "reasoning_keywords", "tiered_accuracy", "shaped_accuracy"]
    assert all(f"rewards/{name}/mean" in figures for name in names)
    lines = records(tmp_path / "run" / "samples" / "rollout_000001.parquet")
    texts = [line["completion"] for line in lines]
    golds = [line["answer"] for line in lines]
    for name, reward in (("tiered_accuracy", rewards.TieredAccuracy()), ("xml_count", rewards.xml_count)):
        assert [line[f"rewards/{name}"] for line in lines] == reward(completions=texts, answer=golds)
    assert [name for name in lines[0] if name.startswith("rewards/")] == [f"rewards/{name}" for name in names]
