"""The figures of a run: ``metrics.csv`` by column, what its curves are drawn over, and long curves made short."""

from __future__ import annotations

import csv
import io
import itertools
import math

from grpo_lightning.report.texts import clean

Columns = dict[str, list[float | None]]
"""Figures by name, each with one entry per row; None where a row has none."""

MOST_COLUMNS = 200
PHASES = ("time/sync", "time/generate", "time/reward_wait", "time/score", "time/update")
"""Parts of a step that follow one another, in seconds: its time, of a run that has no ``step_time``."""


def read_metrics(text: str, notes: list[str]) -> Columns:
    """A metrics.csv by column, in the order of steps.

    Args:
        text: of the file; half a line at its end, of a run that is going on or was killed, is passed over.
        notes: gets a line for what cannot be shown.
    """
    csv.field_size_limit(10_000_000)
    # Lines end at \n alone: a figure's name may hold other characters at which str.splitlines splits.
    reader = csv.reader(io.StringIO(text[: text.rfind("\n") + 1], newline="\n"))
    try:
        names = [clean(name) for name in next(reader, [])]
        rows = [[number_in(cell) for cell in row] for row in reader if len(row) == len(names)]
    except csv.Error as error:
        notes.append(f"metrics.csv cannot be read ({error})")
        return {}
    if "step" not in names:
        return {}
    if len(names) > MOST_COLUMNS:
        notes.append(f"of {len(names)} figures in metrics.csv the first {MOST_COLUMNS} are shown")
    at = names.index("step")
    rows = sorted((row for row in rows if row[at] is not None), key=lambda row: row[at])
    table = {name: [row[i] for row in rows] for i, name in enumerate(names[:MOST_COLUMNS]) if name}
    table = {name: values for name, values in table.items() if any(value is not None for value in values)}
    return {"step": [row[at] for row in rows]} | table


def number_in(cell: str) -> float | None:
    """The finite number that a cell holds; None for anything else."""
    try:
        number = float(cell)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def clocks_of(table: Columns) -> Columns:
    """Steps, tokens and hours behind each row."""
    clocks: Columns = {"step": table.get("step", [])}
    if "num_tokens" in table:
        clocks["tokens"] = _filled(table["num_tokens"])
    elif "tokens" in table:  # supervised: those of a step
        clocks["tokens"] = _summed([table["tokens"]])
    seconds = [table[name] for name in (("step_time",) if "step_time" in table else PHASES) if name in table]
    if seconds:
        clocks["hours"] = [None if total is None else total / 3600 for total in _summed(seconds)]
    return clocks


def _filled(values: list[float | None]) -> list[float | None]:
    """The last known value where there is none; 0 before the first."""
    last, found = 0.0, []
    for value in values:
        last = last if value is None else value
        found.append(last)
    return list(found)


def _summed(columns: list[list[float | None]]) -> list[float | None]:
    """Sums of all rows so far; None beyond the largest number."""
    sums = itertools.accumulate(sum(value or 0.0 for value in row) for row in zip(*columns, strict=True))
    return [total if math.isfinite(total) else None for total in sums]


def thinned(table: Columns, per_point: int) -> Columns:
    """Means of what is known in every ``per_point`` rows."""
    found: Columns = {}
    for name, values in table.items():
        chunks = [[v for v in values[i : i + per_point] if v is not None] for i in range(0, len(values), per_point)]
        found[name] = [_rounded(sum(chunk) / len(chunk)) if chunk else None for chunk in chunks]
    return found


def last_of_each(values: list[float | None], per_point: int) -> list[float | None]:
    """The last of every ``per_point`` rows, and the last row."""
    return values[per_point - 1 :: per_point] + (values[-1:] if len(values) % per_point else [])


def _rounded(value: float) -> float | None:
    """Six digits; None for a sum beyond the largest number."""
    rounded = float(f"{value:.6g}")
    return rounded if math.isfinite(rounded) else None
