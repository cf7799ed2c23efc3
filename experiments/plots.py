"""Draws a sweep, and writes its table into a page: mean and spread over the seeds."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

from experiments.sweep import Run

OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Colours that colour-blind readers tell apart (Okabe and Ito, Color Universal Design)."""
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)), (0, (8, 2)), (0, (4, 1, 1, 1)))
"""One more than there are colours, so that the eighth setting is not drawn as the first."""


class Panel(NamedTuple):
    """One figure over the course of the runs."""

    figure: str
    title: str
    unit: str = ""
    smooth: int = 1
    """Rollouts that a point is the mean of."""
    scale: float = 1.0


class Column(NamedTuple):
    """One column of the table."""

    heading: str
    value: Callable[[Run], float | None]
    """None where a run has no such figure, or never got there."""
    form: str = ".3g"
    """A number's format; ``.1%`` multiplies by 100 and leaves the sign to the heading."""


def draw(runs: Sequence[Run], panels: Sequence[Panel], path: Path, *, ordered: bool = False) -> None:
    """Each setting's mean over its seeds as a line, the least to the greatest value of a seed as a band.

    Args:
        runs: of a sweep.
        panels: what to show, from left to right, at most four in a row.
        path: of the image.
        ordered: the settings are steps on a scale; colours run along it.
    """
    settings = by_setting(runs)
    colors = (
        _along_a_scale(len(settings)) if ordered else list(itertools.islice(itertools.cycle(OKABE_ITO), len(settings)))
    )
    band = min(0.15, 0.6 / len(settings))  # many on top of each other would be grey
    rows = -(-len(panels) // 4)
    columns = -(-len(panels) // rows)
    figure, axes = plt.subplots(rows, columns, figsize=(4.2 * columns, 3.3 * rows), layout="constrained", squeeze=False)
    for place, panel in itertools.zip_longest(axes.flat, panels):
        if panel is None:
            place.set_axis_off()
            continue
        for (setting, seeds), color, line in zip(settings.items(), colors, itertools.cycle(LINES)):
            rollouts, values = aligned(seeds, panel.figure, smooth=panel.smooth)
            if not len(rollouts):
                continue
            values = panel.scale * values
            marker = "o" if len(rollouts) < 15 else None
            place.fill_between(rollouts, values.min(0), values.max(0), color=color, alpha=band, linewidth=0)
            place.plot(
                rollouts, values.mean(0), color=color, linestyle=line, marker=marker, markersize=3, label=setting
            )
        place.set(title=panel.title, xlabel="rollouts", ylabel=panel.unit)
        place.xaxis.get_major_locator().set_params(integer=True)
        place.title.set_fontsize(10)
        place.grid(alpha=0.3)
    if len(settings) > 1:
        figure.legend(*_labels(axes), loc="outside lower center", ncols=len(settings), fontsize=9)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def aligned(seeds: Sequence[Run], figure: str, *, smooth: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Rollouts at which all seeds have a value, and the means of ``smooth`` of them in a row, ``[seeds, rollouts]``."""
    curves = [dict(zip(*run.by_rollout(figure), strict=True)) for run in seeds]
    shared = sorted(set.intersection(*(set(curve) for curve in curves)))
    smooth = max(1, min(smooth, len(shared)))
    values = np.array([[curve[rollout] for rollout in shared] for curve in curves]).reshape(len(curves), len(shared))
    if smooth > 1:
        values = np.stack([np.convolve(row, np.full(smooth, 1 / smooth), "valid") for row in values])
    return np.array(shared[smooth - 1 :]), values


def table(runs: Sequence[Run], columns: Sequence[Column], *, heading: str = "setting") -> str:
    """A Markdown table, one setting a line: mean ± sample standard deviation over the seeds."""
    rows = [[heading, *(column.heading for column in columns)]]
    for setting, seeds in by_setting(runs).items():
        rows.append([setting, *(spread([column.value(run) for run in seeds], column.form) for column in columns)])
    return markdown(rows)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first row is its heading."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def spread(values: Sequence[float | None], form: str) -> str:
    """``mean ± sample standard deviation``, and of how many if some are missing."""
    found = [value for value in values if value is not None]
    if not found:
        return "never" if values else "–"
    if form.endswith("%"):
        found, form = [100 * value for value in found], f"{form[:-1]}f"
    text = f"{np.mean(found):{form}}"
    if len(found) > 1:
        text += f" ± {np.std(found, ddof=1):{form}}"
    return text + (f" ({len(found)} of {len(values)})" if len(found) < len(values) else "")


def write_table(page: Path, text: str, *, name: str = "table") -> None:
    """Put ``text`` between the lines ``<!-- name -->`` and ``<!-- end of name -->`` of a README."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, found, rest = page.read_text("utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"{page}: no lines {begin} and {end} for the table")
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")


def by_setting(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs of each setting, in their order."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.setting, []).append(run)
    return found


def _along_a_scale(number: int) -> list[object]:
    return [mpl.colormaps["viridis"](place) for place in np.linspace(0, 0.85, number)]


def _labels(axes: np.ndarray) -> tuple[list[object], list[str]]:
    """Each setting once, whatever panel shows it."""
    found: Mapping[str, object] = {
        label: line for place in axes.flat for line, label in zip(*place.get_legend_handles_labels(), strict=True)
    }
    return list(found.values()), list(found)
