"""Tables and plots of the page, from what ``run`` computed."""

from __future__ import annotations

import dataclasses
import statistics
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from experiments.plots import OKABE_ITO, markdown
from experiments.scaling.architectures import MODELS
from experiments.scaling.hardware import CARDS, Assumptions
from experiments.scaling.memory import training_bytes
from experiments.scaling.setting import Plan, Workload

SHOWN = ("Qwen2.5-0.5B", "Qwen2.5-1.5B", "Qwen2.5-3B", "Qwen2.5-7B", "Qwen2.5-14B", "Qwen2.5-32B", "Llama-3-70B")
PHASES = ("generate", "sync", "reward", "score", "forward", "backward", "communication", "optimizer", "glue")
WORTH = 1.03
"""Gains below 3% are not shown: the model is not that exact."""
Record = dict[str, Any]


def page(record: Record) -> str:
    """All tables, each under its heading."""
    parts = {
        "What to pick: H100, reasoning": picks(record, "H100", "reasoning"),
        "Other cards and lengths: 8 GPUs": corners(record),
        "Windows": table(record["windows"], "windows"),
        "Group size and layout": table(record["groups"], "workload"),
        "Against published figures": published(record["published"]),
        "Against this project's own phases on a CPU": calibrated(record["calibration"]),
        "Which assumptions matter": table(record["sensitivity"], "assumption"),
    }
    return "\n\n".join(f"### {heading}\n\n{text}" for heading, text in parts.items())


def picks(record: Record, card: str, workload: str) -> str:
    """One line for each model and number of GPUs."""
    heading = ["model", "GPUs", "strategy", "checkpointing", "micro_batch_tokens", "engine", "at once", "s a rollout"]
    rows = [[*heading, "generating", "GB a GPU", "fastest that is not built"]]
    for entry in record["grid"]:
        if (entry["card"], entry["workload"]) != (card, workload) or entry["model"] not in SHOWN:
            continue
        where = [entry["model"], str(entry["gpus"])]
        pick = entry["pick"]
        if pick is None:
            rows.append([*where, "does not fit", *[""] * 7, other(entry)])
            continue
        plan = plan_of(entry["gpus"], pick)
        rows.append(
            [
                *where,
                plan["strategy"] + (f", LoRA {plan['lora']}" if plan["lora"] else ""),
                "yes" if plan["checkpointing"] else "no",
                f"{plan['micro_batch_tokens']:,}",
                f"sleep_level {2 if plan['sleep'] else 0}, memory_share {pick['memory_share']:.2f}",
                str(pick["sequences"]),
                f"{pick['seconds']:.0f}",
                f"{pick['phases']['generate'] / pick['seconds']:.0%}",
                f"{sum(pick['memory_gb'].values()):.0f}",
                other(entry),
            ]
        )
    return markdown(rows)


def other(entry: Record) -> str:
    """The best plan that is not built, and how much faster it is; a dash if it is not."""
    made, pick = entry["not built"], entry["pick"]
    if made is None:
        return "none fits" if pick is None else "–"
    if pick is not None and pick["seconds"] < WORTH * made["seconds"]:
        return "–"
    plan = plan_of(entry["gpus"], made)
    kind = f"server on {plan['serving']}" if plan["serving"] else "colocated"
    engine = f", {plan['engine_gpus']} GPUs an engine" if plan["engine_gpus"] > 1 else ""
    gain = "" if pick is None else f", x{pick['seconds'] / made['seconds']:.2f}"
    return f"{kind}{engine}, {plan['strategy']}: {made['seconds']:.0f} s{gain}"


def plan_of(gpus: int, chosen: Record) -> Record:
    """All of a plan, of which the record has what differs from the defaults."""
    return dataclasses.asdict(Plan(**{"gpus": gpus, **chosen["plan"]}))


def corners(record: Record) -> str:
    """Seconds of a rollout and how, for 8 GPUs of each card."""
    found = {
        (entry["card"], entry["workload"], entry["model"]): entry["pick"]
        for entry in record["grid"]
        if entry["gpus"] == 8
    }
    rows = [["card", "workload", *SHOWN[:5]]]
    for card in record["cards"]:
        for workload in record["workloads"]:
            rows.append([card, workload, *(_short(found[card, workload, model]) for model in SHOWN[:5])])
    return markdown(rows)


def _short(pick: Record | None) -> str:
    if pick is None:
        return "–"
    plan = plan_of(8, pick)
    marks = "+".join(["ckpt"] * plan["checkpointing"] + ["LoRA"] * bool(plan["lora"]))
    return f"{plan['strategy']}{f' ({marks})' if marks else ''}, {pick['seconds']:.0f} s"


def table(entries: list[Record], first: str) -> str:
    """Any list of like entries."""
    names = [first, *(name for name in entries[0] if name != first)]
    cells = [[_text(name, entry[name]) for name in names] for entry in entries]
    return markdown([names, *cells])


def _text(name: str, value: Any) -> str:
    if name in ("generate", "score"):
        return f"{value:.0%}"
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)


def published(found: list[Record]) -> str:
    rows = [["what", "unit", "published", "here", "here / published", "source"]]
    for check in found:
        ratio = check["predicted"] / check["published"]
        figures = [f"{check['published']:.4g}", f"{check['predicted']:.4g}", f"{ratio:.2f}"]
        rows.append([check["what"], check["unit"], *figures, check["source"]])
    return markdown(rows)


def calibrated(calibration: Record) -> str:
    """Measured over predicted, and the geometric mean over sizes."""
    phases = tuple(calibration["sizes"][0]["measured"])
    rows = [["model", "dtype", *phases]]
    factors: dict[str, list[list[float]]] = {}
    for size in calibration["sizes"]:
        seen = [size["measured"][phase] / size["predicted"][phase] for phase in phases]
        factors.setdefault(size["dtype"], []).append(seen)
        rows.append([size["model"], size["dtype"], *(f"{factor:.2f}" for factor in seen)])
    for dtype, of in factors.items():
        means = [statistics.geometric_mean(column) for column in zip(*of, strict=True)]
        rows.append(["geometric mean", dtype, *(f"{mean:.2f}" for mean in means)])
    return markdown(rows)


# --- plots -------------------------------------------------------------------------------------------------------


def draw(record: Record, folder: Path) -> None:
    figure, axes = plt.subplots(1, 3, figsize=(14.5, 4.2), layout="constrained")
    _phases(axes[0], record)
    _memory(axes[1], record)
    _generating(axes[2], record)
    figure.savefig(folder / "plot.png", dpi=130)
    plt.close(figure)


def _picked(record: Record, model: str, workload: str = "reasoning") -> list[Record]:
    place = ("H100", workload, model)
    entries = [e for e in record["grid"] if (e["card"], e["workload"], e["model"]) == place]
    return [{"gpus": e["gpus"], **e["pick"]} for e in entries if e["pick"] and "lora" not in e["pick"]["plan"]]


def _phases(axis: Any, record: Record) -> None:
    """GPU seconds of a completion: level where more GPUs are used as well as few."""
    runs = _picked(record, "Qwen2.5-7B")
    completions = record["workloads"]["reasoning"]["prompts"] * record["workloads"]["reasoning"]["group"]
    below, places = np.zeros(len(runs)), np.arange(len(runs))
    colors = [*OKABE_ITO, "#999999", "#F0E442"]
    for phase, color in zip(PHASES, colors, strict=True):
        values = np.array([run["phases"].get(phase, 0.0) * run["gpus"] / completions for run in runs])
        if (
            values.max()
            > 0.003 * sum(sum(run["phases"].values()) for run in runs[-1:]) * runs[-1]["gpus"] / completions
        ):
            axis.bar(places, values, bottom=below, color=color, label=phase, width=0.7)
        below += values
    axis.set_xticks(places, [f"{run['gpus']}\n{run['seconds']:.0f} s" for run in runs])
    axis.set(title="7B, reasoning: GPU seconds of a completion", xlabel="H100s, and seconds of a rollout", ylabel="s")
    axis.legend(fontsize=8)


def _memory(axis: Any, record: Record) -> None:
    workload = Workload(**record["workloads"]["reasoning"])
    sizes = [model.parameters / 1e9 for model in MODELS]
    settings = [
        ("single", 1, False),
        ("single", 1, True),
        ("fsdp2", 8, True),
        ("fsdp2", 64, True),
        ("fsdp2", 1024, True),
    ]
    for (strategy, gpus, checkpointing), color in zip(settings, OKABE_ITO, strict=False):
        plan = Plan(gpus=gpus, strategy=strategy, checkpointing=checkpointing)
        bytes_of = (
            training_bytes(model, workload, plan, card=CARDS["H100"], assumed=Assumptions()) for model in MODELS
        )
        label = f"{strategy}, {gpus} GPU{'s' * (gpus > 1)}" + ("" if checkpointing else ", no checkpointing")
        axis.plot(sizes, [sum(parts.values()) / 1e9 for parts in bytes_of], marker="o", color=color, label=label)
    for card in CARDS.values():
        if card.name != "A100":
            axis.axhline(card.memory / 1e9, color="#999999", linestyle=":", linewidth=1)
            axis.annotate(card.name, (0.45, 1.05 * card.memory / 1e9), fontsize=8)
    axis.set(xscale="log", yscale="log", title="Training memory a GPU, 16,384 tokens at once")
    axis.set(xlabel="parameters (billions)", ylabel="GB")
    axis.legend(fontsize=8)


def _generating(axis: Any, record: Record) -> None:
    for model, color in zip(("Qwen2.5-0.5B", "Qwen2.5-7B", "Qwen2.5-14B"), OKABE_ITO, strict=False):
        for workload, line in zip(record["workloads"], ("-", "--", ":"), strict=True):
            runs = _picked(record, model, workload)
            shares = [run["phases"]["generate"] / run["seconds"] for run in runs]
            label = f"{model.removeprefix('Qwen2.5-')}, {workload}"
            axis.plot([r["gpus"] for r in runs], shares, line, marker="o", markersize=3, color=color, label=label)
    axis.set(xscale="log", ylim=(0, 1), title="Share of the time spent generating", xlabel="H100s")
    axis.legend(fontsize=7)
