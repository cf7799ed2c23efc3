"""What the model wrote: lines of JSON for evaluated answers, Parquet tables for rollouts, one row per completion."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from grpo_lightning.files import replacing

if TYPE_CHECKING:  # the report reads records without torch
    from grpo_lightning.types import Completion, Prompt

EXACT = 2**53
"""The largest whole number up to which float64 has every one."""


def completion_record(prompt: Prompt, completion: Completion) -> dict[str, Any]:
    """The part that every record of a completion begins with."""
    return {
        "source": prompt.source,
        "row": prompt.row,
        "prompt": prompt.text,
        "answer": prompt.columns.get("answer"),
        "completion": prompt.prefill + completion.text,
        "tokens": len(completion.token_ids),
        "finished": completion.finished,
    }


def write_records(path: Path, records: Iterable[dict[str, Any]], *, append: bool = False) -> None:
    """One line of JSON per record; folders are made.

    Args:
        path: JSON Lines file; what it held is replaced.
        records: with values of any type, see ``as_json``.
        append: keep what it held; half a line at its end, of a run that was killed, stays by itself.
    """
    lines = "".join(json.dumps(as_json(record), ensure_ascii=False, allow_nan=False) + "\n" for record in records)
    # Half a surrogate pair, as broken data has it, is not UTF-8; with a backslash it is JSON's own way to write it.
    data = lines.encode("utf-8", errors="backslashreplace")
    if not append:
        with replacing(path) as file:
            file.write(data)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    size = path.stat().st_size if path.exists() else 0
    try:
        with path.open("ab+") as file:
            if size:
                file.seek(-1, os.SEEK_END)
                data = data if file.read(1) == b"\n" else b"\n" + data
            file.write(data)
    except OSError:  # a full disk took some of it: the next line must not go on there
        with suppress(OSError):
            os.truncate(path, size)
        raise


def read_records(path: Path) -> list[dict[str, Any]]:
    """The mappings of a JSON Lines file, in its order; none if there is no such file.

    What is none, such as half a line of a run that was killed, is passed over.
    """
    if not path.exists():
        return []
    found = []
    # Not str.splitlines: it also splits at characters that may stand inside a JSON string, such as U+2028.
    for line in path.read_text("utf-8", errors="replace").split("\n"):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            found.append(record)
    return found


def as_json(value: Any) -> Any:
    """``value`` in JSON's own types.

    Tensors, arrays and their scalars become numbers and lists; NaN ("does not apply") and infinities, which JSON lacks,
    become null; what JSON has no form for becomes text.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): as_json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(entry) for entry in value]
    if hasattr(value, "tolist"):  # tensors and arrays, and their scalars
        return as_json(value.tolist())
    return str(value)


def write_table(path: Path, rows: Sequence[Mapping[str, Any]], *, types: Mapping[str, pa.DataType]) -> None:
    """A Parquet file, whole or not at all; folders are made.

    Args:
        path: what it held is replaced.
        rows: plain values by column, see ``as_json``; a column that a row lacks is null there.
        types: of columns; any other has the type that its values share, or else holds them as JSON text.

    Raises:
        OSError: the disk is full, or the folder cannot be written.
    """
    names = dict.fromkeys([*types, *(name for row in rows for name in row)])
    columns = {_utf8(name): _column([row.get(name) for row in rows], types.get(name)) for name in names}
    with replacing(path) as file:
        pq.write_table(pa.table(columns), file, compression="zstd")


def _column(values: list[Any], dtype: pa.DataType | None) -> pa.Array:
    if dtype is None:
        dtype = _shared_type(values)
    if dtype is None:
        values, dtype = [value if value is None else json.dumps(value) for value in values], pa.string()
    return pa.array([_utf8(value) if isinstance(value, str) else value for value in values], dtype)


def _shared_type(values: list[Any]) -> pa.DataType | None:
    """None if there is none: of lists, mappings, and whole numbers beyond 64 bits or, beside fractions, ``EXACT``."""
    kinds = {next((k for k in (bool, int, float, str) if isinstance(v, k)), object) for v in values if v is not None}
    if any(isinstance(value, int) and abs(value) >= 2**63 for value in values):
        return None
    if kinds == {int, float}:
        exact = all(abs(value) <= EXACT for value in values if isinstance(value, int))
        return pa.float64() if exact else None
    plain = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
    return plain.get(kinds.pop()) if len(kinds) == 1 else (None if kinds else pa.string())


def _utf8(text: str) -> str:
    """Half a surrogate pair, as broken data has it, with a backslash in front: UTF-8 has no form for it."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
