"""Records are JSON that any parser reads, whatever reward functions put into them."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from grpo_lightning.records import as_json, completion_record, write_records
from grpo_lightning.types import Completion, Prompt


def _strict(path: Path) -> list[Any]:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text("utf-8").splitlines()]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (torch.tensor(2.5, dtype=torch.bfloat16), 2.5),
        (torch.tensor([1.5, math.nan], requires_grad=True), [1.5, None]),
        (math.nan, None),
        (np.float64("nan"), None),
        (math.inf, None),
        (np.float32("-inf"), None),
        ({"a": (1, np.float32(2.0)), 7: None}, {"a": [1, 2.0], "7": None}),
        (Fraction(1, 3), "1/3"),
        (True, True),
        ("ä", "ä"),
    ],
)
def test_values_become_json(value: Any, expected: Any) -> None:
    found = as_json(value)
    assert found == expected
    assert type(found) is type(expected)


def test_lines_are_strict_json(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "records.jsonl"
    write_records(path, [{"reward": math.nan, "text": "a\nü"}, {"half": "\ud83d"}])
    assert _strict(path) == [{"reward": None, "text": "a\nü"}, {"half": "\ud83d"}]
    assert "ü" in path.read_text("utf-8")
    write_records(path, [{"n": 1}], append=True)
    assert _strict(path)[2:] == [{"n": 1}]
    write_records(path, [{"n": 2}])
    assert _strict(path) == [{"n": 2}]


def test_a_completion_is_shown_with_what_the_template_opened() -> None:
    prompt = Prompt(token_ids=[1], text="Q", prefill="<think>", columns={"answer": "4"}, source="s", row=2)
    record = completion_record(prompt, Completion(token_ids=[5, 6], logprobs=[0.0, 0.0], finished=False, text="x"))
    assert record == {
        "source": "s", "row": 2, "prompt": "Q", "answer": "4", "completion": "<think>x", "tokens": 2, "finished": False,
    }  # fmt: skip
