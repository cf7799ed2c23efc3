"""What a run folder holds: figures, evaluations, configuration, environment, samples.

The run may be going on, or have been killed in the middle of a line; what cannot be read is left out and noted.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from grpo_lightning.records import read_records
from grpo_lightning.redaction import redacted_command, redacted_text, redacted_yaml
from grpo_lightning.report.metrics import Columns, clocks_of, last_of_each, read_metrics, thinned
from grpo_lightning.report.samples import Recorded, read_samples
from grpo_lightning.report.texts import clean, shortened

MOST_POINTS = 1_500
"""Points of a curve; longer ones are shown as means over several steps."""
MOST_POINTS_OF_ALL = 6_000
"""Points of one curve over all runs of a page."""
MOST_EVALUATIONS = 1_000
MOST_COMPLETIONS = 2_000
"""Completions on a page, shared out among its runs."""
LONGEST_CONFIG = 200_000
"""Characters."""
MOST_SETTINGS = 2_000
"""Settings of a configuration that are compared."""


@dataclass(kw_only=True)
class Run:
    """One run as a page shows it."""

    name: str
    """Short, and different from the other runs' names."""
    folder: str
    columns: Columns
    """Of ``metrics.csv``."""
    clocks: Columns
    """What curves can be drawn over: ``step``, and where they are known ``tokens`` and ``hours``, since the start."""
    steps: int
    """Optimizer steps taken."""
    per_point: int
    """Rows of ``metrics.csv`` that a point is the mean of."""
    evaluations: list[dict[str, Any]]
    """Lines of ``evaluations.jsonl``."""
    config: str
    """The newest configuration as it was saved."""
    settings: dict[str, str]
    """The same, flat: dotted names and values as text."""
    environment: dict[str, str]
    samples: Recorded
    written: str
    """When ``metrics.csv`` was last written."""
    notes: list[str] = field(default_factory=list)
    """What was left out, and why."""


def is_run(folder: Path) -> bool:
    """True for a folder that ``fit`` has begun to write to."""
    try:
        return any((folder / name).is_file() for name in ("metrics.csv", "config.yaml"))
    except OSError:  # not to be looked into
        return False


def read_run(folder: Path, *, name: str, of: int = 1) -> Run:
    """All that a page shows of a run.

    Args:
        folder: the run's.
        name: that the page calls it by.
        of: number of runs that share the page.
    """
    notes: list[str] = []
    file = folder / "metrics.csv"
    table = read_metrics(read_text(file, notes), notes)
    clocks = clocks_of(table)
    steps = int(max((step for step in clocks["step"] if step is not None), default=0))
    per_point = max(1, math.ceil(len(clocks["step"]) / max(1, min(MOST_POINTS, MOST_POINTS_OF_ALL // of))))
    config = redacted_yaml(read_text(_newest(folder, "config", ".yaml"), notes))
    if len(config) > LONGEST_CONFIG:
        notes.append(f"of the configuration only the first {LONGEST_CONFIG:,} characters are shown")
    written = f"{datetime.fromtimestamp(file.stat().st_mtime, UTC):%Y-%m-%d %H:%M} UTC" if file.exists() else "never"
    return Run(
        name=name,
        folder=clean(str(folder)),
        columns=thinned(table, per_point),
        clocks={name: last_of_each(values, per_point) for name, values in clocks.items()},
        steps=steps,
        per_point=per_point,
        evaluations=_read_evaluations(folder / "evaluations.jsonl", notes),
        config=config[:LONGEST_CONFIG],
        settings=flat_settings(config, notes),
        environment=_read_environment(_newest(folder, "environment", ".json"), notes),
        samples=read_samples(folder / "samples", most=MOST_COMPLETIONS // of, notes=notes),
        written=written,
        notes=notes,
    )


def short_names(folders: Sequence[Path]) -> list[str]:
    """What tells the folders apart; of a single one, its last two parts."""
    parts = [folder.resolve().parts for folder in folders]
    if len(parts) == 1:
        return [clean("/".join(parts[0][-2:]))]
    start = next(i for i, column in enumerate(_columns(parts)) if len(set(column)) > 1)
    end = next(i for i, column in enumerate(_columns([p[::-1] for p in parts])) if len(set(column)) > 1)
    cut = [part[start : len(part) - end] for part in parts]
    if not all(cut):  # one lies inside another
        cut = [part[start - 1 :] for part in parts]
    return [clean("/".join(part)) for part in cut]


def _columns(parts: list[tuple[str, ...]]) -> Iterator[list[str | None]]:
    for i in range(max(map(len, parts)) + 1):
        yield [part[i] if i < len(part) else None for part in parts]


def read_text(file: Path | None, notes: list[str]) -> str:
    """A file's text with whatever is not UTF-8 replaced; "" and a note if it cannot be read, "" if it is not there."""
    if file is None or not file.exists():
        return ""
    try:
        return file.read_text("utf-8", errors="replace")
    except OSError as error:
        notes.append(f"{file.name} cannot be read ({error.strerror})")
        return ""


def _newest(folder: Path, stem: str, suffix: str) -> Path | None:
    """``stem.yaml`` or, of a run that was resumed, the ``stem-<n>.yaml`` with the greatest number."""
    found = {1: folder / f"{stem}{suffix}"} if (folder / f"{stem}{suffix}").is_file() else {}
    for path in folder.glob(f"{stem}-*{suffix}"):
        number = re.fullmatch(rf"{stem}-(\d{{1,9}}){re.escape(suffix)}", path.name)
        if number and path.is_file():
            found[int(number[1])] = path
    return found[max(found)] if found else None


# --- evaluations, configuration, environment -------------------------------------------------------------------------


def _read_evaluations(file: Path, notes: list[str]) -> list[dict[str, Any]]:
    """The lines of evaluations.jsonl, the middle of very many left out."""
    try:
        found = read_records(file)
    except OSError as error:
        notes.append(f"{file.name} cannot be read ({error.strerror})")
        return []
    if len(found) > MOST_EVALUATIONS:
        notes.append(f"of {len(found):,} evaluations the first and the last {MOST_EVALUATIONS // 2:,} are shown")
        found = found[: MOST_EVALUATIONS // 2] + found[-MOST_EVALUATIONS // 2 :]
    return found


def flat_settings(config: str, notes: list[str]) -> dict[str, str]:
    """Dotted names and values of a YAML text; empty, with a note, if it is none."""
    try:
        content = yaml.load(config, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        notes.append(f"the configuration cannot be read as YAML ({type(error).__name__})")
        return {}
    settings: dict[str, str] = {}

    def walk(value: Any, name: str, depth: int) -> None:
        if len(settings) >= MOST_SETTINGS:  # also what a text of aliases of aliases comes to
            return
        if isinstance(value, dict) and value and depth < 20:
            for key, inner in value.items():
                walk(inner, name if key == "init_args" else f"{name}.{key}".lstrip("."), depth + 1)
        elif isinstance(value, list) and any(isinstance(entry, dict | list) for entry in value) and depth < 20:
            for i, entry in enumerate(value):
                walk(entry, f"{name}.{i}", depth + 1)
        else:
            settings[shortened(name)] = shortened(_as_yaml(value))

    walk(content, "", 0)
    return settings


def _as_yaml(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return type(value).__name__


def _read_environment(file: Path | None, notes: list[str]) -> dict[str, str]:
    """What the run wrote about where it ran, flat; empty if it is missing."""
    try:
        content = json.loads(read_text(file, notes) or "{}")
    except (ValueError, RecursionError):
        notes.append("the environment cannot be read")
        return {}
    found: dict[str, str] = {}
    for key, value in content.items() if isinstance(content, dict) else ():
        inner = value.items() if isinstance(value, dict) else [("", value)]
        for name, entry in list(inner)[:100]:
            found[shortened(f"{key} {name}".strip())] = shortened(_redacted(_as_yaml(entry)), 2_000)
    return found


def _redacted(text: str) -> str:
    """For runs whose environment.json was written with secrets in the command."""
    try:
        words = shlex.split(text)
    except ValueError:  # no command: an open quotation mark
        return redacted_text(text)
    return text if (found := redacted_command(words)) == words else shlex.join(found)
