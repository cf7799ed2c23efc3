"""What the model wrote, as lines of JSON: one line per completion, readable by any JSON parser."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from grpo_lightning.types import Completion, Prompt


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
        append: keep what it held.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Half a surrogate pair, as broken data has it, is not UTF-8; with a backslash it is JSON's own way to write it.
    with path.open("a" if append else "w", encoding="utf-8", errors="backslashreplace") as file:
        file.writelines(json.dumps(as_json(record), ensure_ascii=False, allow_nan=False) + "\n" for record in records)


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
