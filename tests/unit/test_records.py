"""Records are JSON that any parser reads, whatever reward functions put into them."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from grpo_lightning.records import as_json, completion_record, read_records, write_records, write_table
from grpo_lightning.types import Completion, Prompt


def _strict(path: Path) -> list[Any]:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text("utf-8").split("\n") if line]


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


def test_what_was_written_is_read_whatever_characters_it_holds(tmp_path: Path) -> None:
    path, lines = tmp_path / "records.jsonl", [{"source": "a\u2028b\x85c\x1cd", "half": "\ud83d"}, {"n": 2}]
    assert read_records(path) == []
    write_records(path, lines)
    assert read_records(path) == lines


def test_half_a_line_is_no_record_and_takes_none_with_it(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(b'{"n": 1}\n[2]\n{"n": "\xc3')
    write_records(path, [{"n": 3}], append=True)
    write_records(path, [{"n": 4}], append=True)
    assert read_records(path) == [{"n": 1}, {"n": 3}, {"n": 4}]
    assert path.read_bytes().endswith(b'\xc3\n{"n": 3}\n{"n": 4}\n')


def test_a_completion_is_shown_with_what_the_template_opened() -> None:
    prompt = Prompt(token_ids=[1], text="Q", prefill="<think>", columns={"answer": "4"}, source="s", row=2)
    record = completion_record(prompt, Completion(token_ids=[5, 6], logprobs=[0.0, 0.0], finished=False, text="x"))
    assert record == {
        "source": "s", "row": 2, "prompt": "Q", "answer": "4", "completion": "<think>x", "tokens": 2, "finished": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("values", "dtype", "stored"),
    [
        ([1, None, 2], "int64", [1, None, 2]),
        ([1, 2.5], "double", [1.0, 2.5]),
        ([True, None], "bool", [True, None]),
        ([None, None], "string", [None, None]),
        ([True, 1], "string", ["true", "1"]),
        ([10**30, 1], "string", [str(10**30), "1"]),
        ([2**53, 0.5], "double", [2.0**53, 0.5]),
        ([2**53 + 1, 0.5], "string", [str(2**53 + 1), "0.5"]),
        ([2**53 + 1, 1], "int64", [2**53 + 1, 1]),
        ([[1], {"a": "\ud83d"}], "string", ["[1]", '{"a": "\\ud83d"}']),
        (["a\0b", "half \udc00 \ud83d", "😀"], "string", ["a\0b", "half \\udc00 \\ud83d", "😀"]),
    ],
)
def test_a_column_of_a_table_has_the_type_of_its_values(
    tmp_path: Path, values: list[Any], dtype: str, stored: list[Any]
) -> None:
    path = tmp_path / "deep" / "er" / "table.parquet"
    write_table(path, [{"\ud800": value} for value in values], types={"fixed": pa.int64()})
    table = pq.read_table(path)
    assert table.column_names == ["fixed", "\\ud800"]
    assert (str(table.schema[1].type), table["\\ud800"].to_pylist()) == (dtype, stored)
    assert table["fixed"].to_pylist() == [None] * len(values)
