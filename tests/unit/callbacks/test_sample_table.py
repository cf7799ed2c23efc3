"""Completions to look at: which, and that whatever a model writes stays text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.loggers import CSVLogger, WandbLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from grpo_lightning.callbacks.sample_table import columns_of, markdown, on_console, pick, plain, shown, to_loggers
from grpo_lightning.loggers import TensorBoard


def row(group: int = 0, reward: float | None = 1.0, **changes: Any) -> dict[str, Any]:
    return {
        "rollout": 3, "step": 6, "group": group, "prompt": "How many?", "answer": "9", "completion": "7+2 #### 9",
        "extracted": "9", "reward": reward, "rewards/right": reward, "rewards/form": 0.25, "advantage": -0.5,
        "finish_reason": "stop", "prompt_tokens": 4, "completion_tokens": 6, "why": "a column of the user's",
    } | changes  # fmt: skip


def test_a_group_whose_completions_earned_differently() -> None:
    flat = [row(0, 1.0), row(0, 1.0)]
    mixed = [row(1, 0.0), row(1, 0.0), row(1, 1.0)]
    assert pick([*flat, *mixed], most=3) == mixed
    assert pick([*flat, *mixed], most=2) == mixed[:2]
    assert pick(flat, most=9) == flat
    assert pick([row(0, None), row(0, None)], most=1) == [row(0, None)]
    assert pick([], most=4) == []


def test_every_reward_stands_beside_the_sum() -> None:
    assert columns_of([row()]) == [
        "rollout", "step", "prompt", "answer", "completion", "extracted", "reward", "rewards/right", "rewards/form",
        "advantage", "finish_reason", "prompt_tokens", "completion_tokens",
    ]  # fmt: skip


def test_the_terminal_gets_prompt_and_gold_above_the_table() -> None:
    text = on_console([row(), row(completion="[bold]no[/bold]", extracted=None)], width=120, color=False)
    lines = text.splitlines()
    assert lines[:3] == ["prompt: How many?", "gold: 9", "rollout 3, step 6: 4 prompt tokens"]
    for part in ("7+2 #### 9", "[bold]no[/bold]", "right", "form", "0.25", "-0.5", "stop"):
        assert part in text
    assert "\x1b" not in text
    assert max(map(len, lines)) <= 120
    assert "\x1b[" in on_console([row()], width=120, color=True)


def test_a_narrow_terminal_holds_it_too() -> None:
    assert max(map(len, on_console([row(completion="word " * 300)], width=80, color=False).splitlines())) <= 80


HOSTILE = "\x1b[2J\x1b]0;title\x07 <script>alert(1)</script> | a | ![x](http://h/y.png) \ud800 **b**\n# c\r"


def test_what_steers_a_terminal_is_written_out() -> None:
    assert plain("a\x1b[2J\r\x07\ud800\u202e\nb") == "a\\x1b[2J\\r\\x07\\ud800\\u202e\nb"
    text = on_console([row(completion=HOSTILE, prompt=HOSTILE, answer=HOSTILE)], width=100, color=False)
    assert not set(text) & {"\x1b", "\x07", "\r"}
    text.encode("utf-8")


def test_markdown_is_text() -> None:
    table = markdown([row(completion=HOSTILE)], ["completion", "rewards/right"])
    header, rule, body = table.split("\n")
    assert (header, rule) == ("| completion | rewards/right |", "| --- | --- |")
    assert body == (
        r"| \\x1b\[2J\\x1b\]0;title\\x07 &lt;script&gt;alert\(1\)&lt;/script&gt; \| a \| "
        r"\!\[x\]\(http://h/y\.png\) \\ud800 \*\*b\*\*<br>\# c\\r | 1 |"
    )


def test_long_texts_lose_their_middle() -> None:
    assert shown("a" * 10, most=10) == "a" * 10
    assert shown("a" * 600 + "b" * 600, most=10) == "aaaaa [... 1,190 characters ...] bbbbb"
    assert (shown(None, most=9), shown(0.123456, most=2), shown(12345, most=9)) == ("-", "0.1235", "12345")


def test_loggers_get_it_once_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables: list[Any] = []
    monkeypatch.setattr(WandbLogger, "log_table", lambda self, key, **table: tables.append((key, table)))
    board = TensorBoard(str(tmp_path))
    loggers = [board, WandbLogger.__new__(WandbLogger), CSVLogger(tmp_path)]
    to_loggers([row(), row(completion="\ud800", reward=None)], loggers, step=6)
    ((key, table),) = tables
    assert (key, table["step"]) == ("samples", 6)
    assert table["data"][1][4:7] == ["\\ud800", "9", None]
    board.experiment.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    (event,) = events.Tensors("samples/text_summary")
    assert event.step == 6
    assert b"How many?" in event.tensor_proto.string_val[0]
