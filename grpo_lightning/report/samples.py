"""The tables of samples that a run wrote, cut down to what a page can hold.

Few completions of every part of the training say more than many of one: rollouts are chosen evenly from the first to
the last, and of each its first groups, whole.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

MOST_ROLLOUTS = 40
LARGEST_GROUP = 64
"""Completions of a group that are shown."""
SPARE_ROWS = 1_024
"""Read beyond those wanted, so that the last group is whole or known not to fit."""
LONGEST_TEXT = 3_000
"""Characters of a prompt or completion; of a longer one, the first and the last half of these."""
LONGEST_VALUE = 300
"""Characters of any other value."""
MOST_EXTRAS = 20
"""Columns of the user's own."""
OWN = frozenset({
    "rollout", "step", "group", "source", "row", "prompt", "completion", "answer", "extracted", "reward", "advantage",
    "finish_reason", "prompt_tokens", "completion_tokens",
})  # fmt: skip
"""Columns of every table; ``rewards/<name>`` beside them, and the user's."""
NAME = re.compile(r"rollout_(\d{1,12})\.parquet")


class Recorded(NamedTuple):
    """The samples of a run."""

    rollouts: list[dict[str, Any]]
    """``{"rollout", "step", "groups": [{"prompt", ..., "completions": [...]}]}``: plain values for JSON."""
    shown: int
    """Completions in it."""
    recorded: int
    """Completions in all tables of the run."""
    tables: int
    """Tables of the run."""


def read_samples(folder: Path, *, most: int, notes: list[str]) -> Recorded:
    """What a page shows of ``samples/``.

    Args:
        folder: that of the tables; it may be missing.
        most: completions (a single group may have more).
        notes: gets a line for each table that cannot be read.
    """
    files = {int(n[1]): path for path in folder.glob("rollout_*.parquet") if (n := NAME.fullmatch(path.name))}
    numbers = sorted(files)
    chosen = _evenly(numbers, min(MOST_ROLLOUTS, max(1, most)))
    recorded = sum(_rows(files[number]) for number in numbers)
    rollouts, shown = [], 0
    for left, number in zip(range(len(chosen), 0, -1), chosen, strict=True):
        try:
            rows = _first_rows(files[number], most=max(1, (most - shown) // left) + SPARE_ROWS)
        except Exception as error:  # of Arrow or of Python's own types, which hold less: a date of the year 20000
            notes.append(f"{files[number].name} cannot be read ({type(error).__name__})")
            continue
        groups = _groups(rows, most=max(1, (most - shown) // left))
        rollouts.append({"rollout": number, "step": value(rows[0].get("step")) if rows else None, "groups": groups})
        shown += sum(len(group["completions"]) for group in groups)
    return Recorded(rollouts, shown, recorded, len(files))


def _first_rows(file: Path, *, most: int) -> list[dict[str, Any]]:
    """Without reading the rest: a table may be larger than the memory at hand."""
    with pq.ParquetFile(file) as table:
        return next((batch.to_pylist() for batch in table.iter_batches(batch_size=most)), [])


def _rows(file: Path) -> int:
    try:
        return pq.read_metadata(file).num_rows
    except (OSError, pa.ArrowException):
        return 0


def _evenly(numbers: list[int], most: int) -> list[int]:
    """At most ``most`` of them, from the first to the last."""
    if len(numbers) <= most:
        return numbers
    last = len(numbers) - 1
    return [numbers[round(i * last / max(most - 1, 1))] for i in range(most)] if most > 1 else numbers[-1:]


def _groups(rows: list[dict[str, Any]], *, most: int) -> list[dict[str, Any]]:
    """The first whole groups of a table."""
    groups: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(value(row.get("group")), []).append(row)
    found: list[dict[str, Any]] = []
    for number, members in groups.items():
        if found and sum(len(group["completions"]) for group in found) + len(members) > most:
            break
        first = members[0]
        found.append(
            {
                "group": number,
                "source": value(first.get("source")),
                "row": value(first.get("row")),
                "prompt": text(first.get("prompt")),
                "prompt_tokens": value(first.get("prompt_tokens")),
                "answer": value(first.get("answer")),
                "completions": [_completion(row) for row in members[:LARGEST_GROUP]],
            }
        )
    return found


def _completion(row: dict[str, Any]) -> dict[str, Any]:
    extras = [name for name in row if name not in OWN and not name.startswith("rewards/")][:MOST_EXTRAS]
    return {
        "text": text(row.get("completion")),
        "extracted": value(row.get("extracted")),
        "reward": value(row.get("reward")),
        "advantage": value(row.get("advantage")),
        "finish": value(row.get("finish_reason")),
        "tokens": value(row.get("completion_tokens")),
        "terms": {value(n[8:]): value(score) for n, score in row.items() if n.startswith("rewards/")},
        "extras": {value(name): value(row[name]) for name in extras if row[name] is not None},
    }


def text(content: Any) -> str:
    """A long text with its middle left out: the answer stands at its end."""
    content = "" if content is None else str(content)
    if len(content) <= LONGEST_TEXT:
        return content
    half = LONGEST_TEXT // 2
    return f"{content[:half]}\n… [{len(content) - 2 * half:,} characters left out] …\n{content[-half:]}"


def value(content: Any) -> Any:
    """A number or a short text, for JSON."""
    if content is None or isinstance(content, bool | int):
        return content
    if isinstance(content, float):
        return float(f"{content:.6g}") if math.isfinite(content) else None
    content = content if isinstance(content, str) else json.dumps(content, default=str)
    return content if len(content) <= LONGEST_VALUE else content[:LONGEST_VALUE] + "…"
