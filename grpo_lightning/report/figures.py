"""Which figures a page draws, how it names them, and its tables of final figures and evaluations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from grpo_lightning.report.reading import Run
from grpo_lightning.report.texts import shortened

LAST_SHARE = 0.1
"""Part of a run's end that its final figures are means over."""


@dataclass(kw_only=True)
class Panel:
    """One chart."""

    title: str
    unit: str
    """Of the vertical axis."""
    lines: dict[str, str]
    """Columns of metrics.csv, each with its name in the legend."""
    scale: float = 1.0
    log: bool = False
    final: bool = True
    """Its first line is among the final figures."""


PANELS = (
    Panel(title="Reward", unit="mean of a rollout", lines={"reward": "reward"}),
    Panel(title="Spread of rewards in a group", unit="standard deviation", lines={"reward_std": "reward_std"}),
    Panel(
        title="Groups without signal",
        unit="% of groups",
        lines={"frac_reward_zero_std": "all rewards equal"},
        scale=100,
    ),
    Panel(
        title="Completion length",
        unit="tokens",
        lines={"completions/mean_length": "mean", "completions/max_length": "longest"},
    ),
    Panel(
        title="Cut by the length limit", unit="% of completions", lines={"completions/clipped_ratio": "cut"}, scale=100
    ),
    Panel(title="KL to the reference", unit="nats per token", lines={"kl": "KL"}),
    Panel(title="Entropy", unit="nats per token", lines={"entropy": "entropy"}),
    Panel(
        title="Clipped ratios",
        unit="% of tokens",
        lines={"clip_ratio/region_mean": "all", "clip_ratio/low_mean": "too low", "clip_ratio/high_mean": "too high"},
        scale=100,
    ),
    Panel(
        title="Sampler-trainer gap",
        unit="nats, log scale",
        lines={"sampling/logp_difference/mean": "mean", "sampling/logp_difference/max": "largest"},
        log=True,
    ),
    Panel(
        title="Throughput",
        unit="tokens per second",
        lines={"generated_tokens_per_second": "while sampling", "tokens_per_second": "whole step, prompts included"},
    ),
    Panel(
        title="Model FLOPs utilisation",
        unit="% of the devices' peak",
        lines={"mfu/update": "update", "mfu/step": "whole step"},
        scale=100,
    ),
    Panel(title="Gradient norm before clipping", unit="L2 norm", lines={"grad_norm": "gradient norm"}),
    Panel(title="Learning rate", unit="per step", lines={"learning_rate": "learning rate"}, final=False),
    Panel(
        title="Time per phase",
        unit="seconds per step",
        lines={
            "time/generate": "generate",
            "time/reward_wait": "wait for rewards",
            "time/score": "log-probs",
            "time/update": "update",
            "time/sync": "weight sync",
            "time/other": "other",
        },
        final=False,
    ),
    Panel(title="Loss (near 0 on a first pass: normal)", unit="mean of a step", lines={"loss": "loss"}, final=False),
)


def panels(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The charts for which at least one run has figures, each reward function's after the reward."""
    known = {name for run in runs for name in run.columns}
    chosen = []
    for panel in PANELS:
        lines = {column: label for column, label in panel.lines.items() if column in known}
        if lines:
            chosen.append(asdict(panel) | {"lines": lines})
        if panel.title == "Reward":
            chosen += [asdict(term) for term in _reward_terms(known)]
    return chosen


def _reward_terms(known: Iterable[str]) -> list[Panel]:
    names = sorted(name for name in known if name.startswith("rewards/") and name.endswith("/mean"))
    return [
        Panel(title=f"Reward term {name[8:-5]}", unit="mean of a rollout, unweighted", lines={name: name[8:-5]})
        for name in names
    ]


def curves(run: Run) -> dict[str, Any]:
    """A run's figures for the charts, as plain values for JSON."""
    return {
        "name": run.name,
        "clocks": run.clocks,
        "columns": {name: values for name, values in run.columns.items() if name != "step"},
        "accuracy": _accuracies(run),
        "rollouts": run.samples.rollouts,
    }


def _accuracies(run: Run) -> dict[str, list[list[float]]]:
    """By source: ``[step, accuracy, low, high]`` in % of each evaluation during training."""
    found: dict[str, list[list[float]]] = {}
    for line in training_evaluations(run):
        step, accuracy = number(line.get("step")), number(line.get("accuracy"))
        low, high = interval(line, "accuracy")
        if step is None or accuracy is None:
            continue
        low, high = (accuracy if low is None else low), (accuracy if high is None else high)
        found.setdefault(str(line.get("source")), []).append([step, 100 * accuracy, 100 * low, 100 * high])
    return found


def training_evaluations(run: Run) -> list[dict[str, Any]]:
    """Those that ``fit`` made, in the order of steps."""
    found = [line for line in run.evaluations if line.get("command") == "fit" and number(line.get("step")) is not None]
    return sorted(found, key=lambda line: line["step"])


def number(value: Any) -> float | None:
    """A finite number, None for anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    return float(value) if is_number else None


def interval(line: dict[str, Any], figure: str) -> tuple[float | None, float | None]:
    """The 95% interval of a figure of an evaluation, or (None, None)."""
    bounds = line.get(f"{figure}_interval")
    if not isinstance(bounds, list) or len(bounds) != 2:
        return None, None
    return number(bounds[0]), number(bounds[1])


# --- tables ----------------------------------------------------------------------------------------------------------


def final_figures(runs: Sequence[Run]) -> list[tuple[str, str, list[str]]]:
    """Rows of the table of final figures: a label, a unit, and each run's value as text."""
    rows = [("Optimizer steps", "", [f"{run.steps:,}" for run in runs])]
    tokens, hours = ([next(iter(run.clocks.get(c, [])[-1:]), None) for run in runs] for c in ("tokens", "hours"))
    rows.append(("Tokens", "prompts included", [_text(value) for value in tokens]))
    minutes = not any(value is not None and value > 2 for value in hours)
    times = [None if value is None else value * (60 if minutes else 1) for value in hours]
    rows.append(("Time of the steps", "minutes" if minutes else "hours", [_text(value) for value in times]))
    for source in dict.fromkeys(str(line.get("source")) for run in runs for line in training_evaluations(run)):
        own = [[line for line in training_evaluations(run) if str(line.get("source")) == source] for run in runs]
        cells = [share(lines[-1], "accuracy") if lines else "–" for lines in own]
        rows.append((f"Greedy accuracy, {shortened(source, 60)}", "% [95% interval]", cells))
    for panel in (panel for panel in panels(runs) if panel["final"]):
        column, name = next(iter(panel["lines"].items()))
        ends = [_end(run.columns.get(column, [])) for run in runs]
        cells = [_text(None if end is None else panel["scale"] * end) for end in ends]
        label = panel["title"] + (f", {name}" if len(panel["lines"]) > 1 else "")
        rows.append((label, panel["unit"].partition(",")[0], cells))
    return [row for row in rows if any(cell != "–" for cell in row[2])]


def _end(values: Sequence[float | None]) -> float | None:
    """Mean over the last tenth of what is known."""
    known = [value for value in values if value is not None]
    tail = known[-max(1, round(LAST_SHARE * len(known))) :]
    return sum(tail) / len(tail) if tail else None


def _text(value: float | None, sign: str = "") -> str:
    """Four digits that matter; whole numbers and large ones without a point."""
    if value is None or not math.isfinite(value):  # the mean of numbers near the largest is beyond it
        return "–"
    plain = abs(value) >= 1_000 or value == int(value)
    return f"{value:{sign},.0f}" if plain and abs(value) < 1e15 else f"{value:{sign}.4g}"


def share(line: dict[str, Any], figure: str) -> str:
    """A share in %, with its interval if it has one."""
    value, (low, high) = number(line.get(figure)), interval(line, figure)
    if value is None:
        return "–"
    return f"{100 * value:.1f}" + (
        f" [{100 * low:.1f},\u00a0{100 * high:.1f}]" if low is not None and high is not None else ""
    )


def evaluation_tables(run: Run) -> list[dict[str, Any]]:
    """Each source's first and last evaluation during training, figure by figure."""
    tables = []
    lines = training_evaluations(run)
    for source in dict.fromkeys(str(line.get("source")) for line in lines):
        own = [line for line in lines if str(line.get("source")) == source]
        ends = own[:1] + own[-1:] if len(own) > 1 else own
        problems = number(ends[-1].get("problems"))
        tables.append(
            {
                "source": shortened(source),
                "problems": _text(problems),
                "headings": [f"step {line['step']:,}" for line in ends],
                "rows": _evaluation_rows(ends),
            }
        )
    return tables


def _evaluation_rows(ends: list[dict[str, Any]]) -> list[tuple[str, list[str]]]:
    rows = []
    for figure in sorted(ends[-1], key=lambda name: (name != "accuracy", "@" not in name)):
        values = [number(line.get(figure)) for line in ends]
        if figure in ("step", "problems") or all(value is None for value in values):
            continue
        name = figure.rpartition("/")[2]  # of all problems, or behind a part of them, level=5/accuracy
        is_share = name == "accuracy" or name.endswith("_ratio") or name.startswith(("pass@", "maj@"))
        cells = [share(e, figure) if is_share else _text(v) for e, v in zip(ends, values, strict=True)]
        first, last = values[0], values[-1]
        known = len(ends) > 1 and first is not None and last is not None
        change = "–" if not known else f"{100 * (last - first):+.1f}" if is_share else _text(last - first, "+")
        unit = " (%)" if is_share else " (tokens)" if figure.endswith("length") else ""
        rows.append((shortened(figure) + unit, [*cells, change] if len(ends) > 1 else cells))
    return rows


def other_evaluations(run: Run) -> list[list[str]]:
    """What ``validate`` and ``test`` found: command, source, weights, step, accuracy."""
    found = []
    for line in run.evaluations:
        if line.get("command") != "fit":
            weights = line.get("checkpoint") or line.get("policy") or ""
            cells = (line.get("command"), line.get("source"), weights, line.get("step"))
            found.append([*(shortened(str(cell)) for cell in cells), share(line, "accuracy"), share(line, "pass@1")])
    return found[-50:]


def differing_settings(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """Settings that are not the same in all runs; "" where a run has none."""
    names = dict.fromkeys(name for run in runs for name in run.settings)
    rows = [(name, [run.settings.get(name, "") for run in runs]) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1]
