"""Some completions to look at while the run goes on: on the terminal, in TensorBoard, in Weights & Biases."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from typing import Any

from lightning.pytorch.loggers import Logger, TensorBoardLogger, WandbLogger
from rich.console import Console
from rich.table import Table
from rich.text import Text

TAG = "samples"
CONSOLE_LENGTH, LOGGER_LENGTH = 500, 4000
"""Characters of a text that are shown; a longer one loses its middle."""
PLACE = ("rollout", "step", "prompt", "answer")
"""Columns that the rows of one group share."""
SPECIAL = re.compile(r"([\\`*_{}\[\]()#+\-.!|~$])")
"""What Markdown reads as more than itself."""

Row = dict[str, Any]


def pick(rows: Sequence[Row], *, most: int) -> list[Row]:
    """Completions of one group: of the first in which they earned differently, or else of the first.

    Args:
        rows: of a rollout, as ``SamplesCallback`` makes them, group by group.
        most: completions.
    """
    groups: dict[int, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["group"], []).append(row)
    told_apart = (group for group in groups.values() if len({row["reward"] for row in group}) > 1)
    return next(told_apart, next(iter(groups.values()), []))[:most]


def columns_of(rows: Iterable[Row]) -> list[str]:
    """Columns that are shown: the project's own in this order, each reward function's score beside the sum."""
    rewards = dict.fromkeys(name for row in rows for name in row if name.startswith("rewards/"))
    lengths = ("finish_reason", "prompt_tokens", "completion_tokens")
    return [*PLACE, "completion", "extracted", "reward", *rewards, "advantage", *lengths]


def on_console(rows: Sequence[Row], *, width: int, color: bool) -> str:
    """The rows as text: prompt and gold above a table of the completions.

    Args:
        rows: of one group, at least one.
        width: of the terminal, in characters.
        color: whether it shows colors.
    """
    first = rows[0]
    title = f"rollout {first['rollout']}, step {first['step']}: {first['prompt_tokens']} prompt tokens"
    table = Table(title=title, title_justify="left", show_lines=True, expand=True)
    names = [name for name in columns_of(rows) if name not in (*PLACE, "prompt_tokens")]
    for name in names:
        header = {"finish_reason": "finish", "completion_tokens": "tokens"}.get(name, name.removeprefix("rewards/"))
        wide = name == "completion"
        table.add_column(
            Text(plain(header)), ratio=1 if wide else None, overflow="fold", max_width=None if wide else 12
        )
    for row in rows:
        table.add_row(*(Text(shown(row.get(name), most=CONSOLE_LENGTH)) for name in names))
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=color, no_color=not color)
    for name, label in (("prompt", "prompt"), ("answer", "gold")):
        console.print(Text(f"{label}: {shown(first[name], most=CONSOLE_LENGTH)}"))
    console.print(table)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def to_loggers(rows: Sequence[Row], loggers: Iterable[Logger], *, step: int) -> None:
    """The rows as a table of Weights & Biases and a text of TensorBoard, wherever there is such a logger.

    Args:
        rows: at least one.
        loggers: of the run.
        step: optimizer steps taken.
    """
    columns = columns_of(rows)
    for logger in loggers:
        if isinstance(logger, WandbLogger):
            data = [[_for_logger(row.get(name)) for name in columns] for row in rows]
            logger.log_table(TAG, columns=columns, data=data, step=step)
        elif isinstance(logger, TensorBoardLogger):
            logger.log_metrics({}, step)  # it is opened by the first one
            logger.experiment.add_text(TAG, markdown(rows, columns), step)


def markdown(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """A table in Markdown whose cells are text and nothing else.

    Args:
        rows: at least one.
        columns: to be shown.
    """

    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cells)} |"

    body = [line(verbatim(shown(row.get(name), most=LOGGER_LENGTH)) for name in columns) for row in rows]
    return "\n".join([line(verbatim(name) for name in columns), line("---" for _ in columns), *body])


def verbatim(text: str) -> str:
    """``text`` so that Markdown, and the HTML in it, show it as it is, in one line."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return SPECIAL.sub(r"\\\1", escaped).replace("\n", "<br>")


def shown(value: Any, *, most: int) -> str:
    """A cell's text: numbers short, texts without control characters, at most so many characters of each."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    text = plain(str(value))
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} [... {len(text) - 2 * half:,} characters ...] {text[-half:]}"


def plain(text: str) -> str:
    """``text`` with what steers a terminal, or is no character at all, written out: ``\\x1b``, ``\\ud800``."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode("ascii") for c in text)


def _for_logger(value: Any) -> Any:
    return shown(value, most=LOGGER_LENGTH) if isinstance(value, str) else value
