"""The record as tables and a drawing: python -m experiments.benchmark.report writes them anew."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from experiments.benchmark.job import NONE, OURS
from experiments.benchmark.stopwatch import PHASES

HERE = Path(__file__).resolve().parent
TRAINING = ("score", "forward", "backward", "optimizer")
PARTS = (*PHASES, "glue")
COLUMNS = (
    "side",
    "step (s)",
    "tokens/s",
    "training phases (s)",
    "cores busy",
    "padding (%)",
    "utilisation, training (%)",
    "of the step (%)",
    "peak above load (MiB)",
    "peak (MiB)",
)

Run = dict[str, Any]


def figures(run: Run, workload: dict[str, Any]) -> dict[str, float]:
    """Of one run, as means over its measured steps.

    Both trainers learn of the same recorded completions, but each samples its own, which are shorter or longer by
    chance: so the time of generation is scaled to the recorded number of tokens.
    """
    steps = run["steps"]
    mean = {name: statistics.fmean(step.get(name, 0.0) for step in steps) for name in {*steps[0], *PARTS}}
    mean["cores"] = mean.get("processor", 0.0) / mean["step"]
    if mean.get("generated_tokens"):
        scaled = mean["generate"] * mean["trained_tokens"] / mean["generated_tokens"]
        mean["step"] += scaled - mean["generate"]
        mean["generate"] = scaled
    mean["training"] = sum(mean[phase] for phase in TRAINING)
    flops = workload["flops_with_reference" if run["job"]["beta"] else "flops"]
    rate = workload["matmul"][run["job"]["precision"]]
    return mean | {
        "tokens_per_second": mean["trained_tokens"] / mean["step"],
        "padding": mean.get("padding_tokens", 0.0) / mean["computed_tokens"],
        "training_utilisation": flops["train"] / (mean["training"] * rate),
        "utilisation": (flops["train"] + flops["generate"]) / (mean["step"] * rate),
        **{f"memory_{name}": value for name, value in run["memory"].items()},
    }


def label(run: Run) -> str:
    """Of the side that a run belongs to."""
    job = run["job"]
    trainer = f"ours, {job['engine']}" if job["trainer"] == OURS else "TRL"
    changes = {"checkpointing": "checkpointing", "completion_head": "head on completion tokens alone"}
    return ", ".join([trainer, f"micro-batch {job['rows']}", *(words for name, words in changes.items() if job[name])])


def by_side(runs: Iterable[Run], workload: dict[str, Any]) -> dict[str, list[dict[str, float]]]:
    """Figures of the runs of each side, in their order."""
    found: dict[str, list[dict[str, float]]] = {}
    for run in runs:
        found.setdefault(label(run), []).append(figures(run, workload))
    return found


def spread(values: Sequence[float], form: str) -> str:
    """Median, and least to greatest if there are several."""
    text = f"{statistics.median(values):{form}}"
    return text if len(values) == 1 else f"{text} ({min(values):{form}} to {max(values):{form}})"


def ratio(theirs: Sequence[dict[str, float]], ours: Sequence[dict[str, float]], name: str) -> float:
    """How many times as much of ``name`` the others take, by medians."""
    return statistics.median(run[name] for run in theirs) / statistics.median(run[name] for run in ours)


def summary(sides: dict[str, list[dict[str, float]]]) -> list[list[str]]:
    """One line a side."""
    rows = [list(COLUMNS)]
    for side, runs in sides.items():
        many = {name: [run[name] for run in runs] for name in runs[0]}
        rows.append(
            [
                side,
                spread(many["step"], ".2f"),
                spread(many["tokens_per_second"], ".0f"),
                spread(many["training"], ".2f"),
                spread(many["cores"], ".2f"),
                spread([100 * value for value in many["padding"]], ".0f"),
                spread([100 * value for value in many["training_utilisation"]], ".1f"),
                spread([100 * value for value in many["utilisation"]], ".1f"),
                spread(many["memory_above_load"], ".0f"),
                spread(many["memory_peak"], ".0f"),
            ]
        )
    return rows


def ratios(sides: dict[str, list[dict[str, float]]]) -> list[list[str]]:
    """Each of our sides against each of TRL's."""
    rows = [["", "step rate", "training phases", "peak above load"]]
    for ours, mine in sides.items():
        for theirs, other in sides.items():
            if ours.startswith("ours") and theirs.startswith("TRL"):
                step, training = (ratio(other, mine, name) for name in ("step", "training"))
                memory = 1 / ratio(other, mine, "memory_above_load")
                rows.append([f"{ours} / {theirs}", f"{step:.2f} x", f"{training:.2f} x", f"{memory:.2f} x"])
    return rows


def phases(sides: dict[str, list[dict[str, float]]]) -> list[list[str]]:
    """Median seconds of each phase."""
    rows = [["seconds", *PARTS]]
    for side, runs in sides.items():
        rows.append([side, *(f"{statistics.median(run[part] for run in runs):.3f}" for part in PARTS)])
    return rows


def page(record: dict[str, Any]) -> str:
    """All tables."""
    from experiments.plots import markdown

    parts = []
    for name, workload in record["workloads"].items():
        of = {
            purpose: [run for run in workload["runs"] if run["purpose"] == purpose]
            for purpose in ("main", "tune", "once")
        }
        sides = by_side(of["main"], workload)
        rates = ", ".join(f"{rate / 1e12:.2f} in {precision}" for precision, rate in workload["matmul"].items())
        completions, prompts = workload["completion_length"], workload["prompt_length"]
        parts += [
            f"### {name}: {workload['title']}",
            f"Prompts of {prompts['mean']:.0f} tokens, completions of {completions['mean']:.1f} (longest "
            f"{completions['max']}); a step needs {workload['flops']['train'] / 1e12:.3g} TFLOP to train and "
            f"{workload['flops']['generate'] / 1e12:.3g} to generate. {workload['machine']}; {rates} TFLOP/s in a "
            f"matrix product; commit {workload['commit']}.",
            markdown(summary(sides)),
            markdown(ratios(sides)),
            markdown(phases(sides)),
        ]
        once: dict[str, list[Run]] = {}
        for run in of["once"]:
            once.setdefault(f"{run['job']['precision']}, beta {run['job']['beta']:g}, one run", []).append(run)
        for setting, runs in once.items():
            found = by_side(runs, workload)
            parts += [f"{setting}:", markdown(summary(found)), markdown(phases(found))]
        parts += ["TRL's training phases in other settings (nothing generated):", markdown(_tried(of["tune"]))]
    return "\n\n".join(parts)


def _tried(runs: Iterable[Run]) -> list[list[str]]:
    rows = [["side", "step (s)", "peak above load (MiB)"]]
    for run in runs:
        assert run["job"]["engine"] == NONE
        seconds = statistics.fmean(step["step"] for step in run["steps"])
        rows.append([label(run), f"{seconds:.2f}", f"{run['memory']['above_load']:.0f}"])
    return rows


def draw(record: dict[str, Any], path: Path) -> None:
    """Phases of a step as stacked bars, one panel a workload."""
    import matplotlib.pyplot as plt

    from experiments.plots import OKABE_ITO

    workloads = record["workloads"]
    figure, axes = plt.subplots(len(workloads), figsize=(8, 2.2 * len(workloads)), layout="constrained", squeeze=False)
    for place, (name, workload) in zip(axes.flat, workloads.items(), strict=True):
        sides = by_side([run for run in workload["runs"] if run["purpose"] == "main"], workload)
        left = [0.0] * len(sides)
        for part, color in zip(PARTS, (*OKABE_ITO, "#999999"), strict=True):
            seconds = [statistics.median(run[part] for run in runs) for runs in sides.values()]
            place.barh(list(sides), seconds, left=left, color=color, label=part)
            left = [a + b for a, b in zip(left, seconds, strict=True)]
        place.invert_yaxis()
        place.set(title=name, xlabel="seconds a step")
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=len(PARTS), fontsize=8)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def write(record: dict[str, Any]) -> None:
    """Tables into the page, and the drawing."""
    from experiments.plots import write_table

    write_table(HERE / "README.md", page(record))
    draw(record, HERE / "plot.png")


if __name__ == "__main__":
    write(json.loads((HERE / "results.json").read_text("utf-8")))
