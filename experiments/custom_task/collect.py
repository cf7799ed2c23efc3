"""The runs as one record: results.json, learning_curve.png, and the tables in README.md between their marks.

python -m experiments.custom_task.collect
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from experiments.custom_task.baselines import BASELINES, known_rows, measure
from experiments.custom_task.run import CONFIGS, LEARNING_RATES, RUNS, SEEDS, best_rate, figures, folder
from experiments.custom_task.series import PriceMoves
from experiments.machine import processor, versions
from experiments.plots import markdown, spread, write_table
from experiments.sweep import ROOT, read_figure

HERE = Path(__file__).resolve().parent
SMOOTHED = 10
"""Steps that a point of the training curves is the mean of."""
HEADINGS = {
    "direction": ("direction right (%)", ".1%"),
    "size_error": ("size off by (points)", ".2f"),
    "profit": ("profit a move (points)", ".2f"),
    "rash": ("rash (%)", ".1%"),
    "reward": ("full reward", ".3f"),
}


def main() -> None:
    rate = best_rate()
    names = {
        "supervised start": "start",
        "start, 100 more supervised steps on the analyst": "supervised-analyst",
        "start, 100 supervised steps on what came": "supervised-answer",
        "start, 100 GRPO steps, direction only": f"direction-{rate}",
        "start, 100 GRPO steps, full reward": f"full-{rate}",
    }
    test, times = PriceMoves(split="test").rows(), sorted(RUNS.glob("*/*/seconds.json"))
    record = {
        "command": "OMP_NUM_THREADS=1 python -m experiments.custom_task.run",
        "configs": [f"{CONFIGS}/supervised.yaml", f"{CONFIGS}/custom_task.yaml"],
        "machine": f"{os.cpu_count()} CPU cores ({processor()}), no GPU; one thread, other work beside",
        "versions": versions(),
        "learning_rate": rate,
        "baselines": {name: measure(baseline(known_rows(), test), test) for name, baseline in BASELINES.items()},
        "trained": {name: [figures(seed, run, "test") for seed in SEEDS] for name, run in names.items()},
        "sweep": {r: [figures(seed, f"full-{r}", "validation") for seed in SEEDS] for r in LEARNING_RATES},
        "seconds": {str(file.parent.relative_to(RUNS)): json.loads(file.read_text()) for file in times},
    }
    (HERE / "results.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    draw(record)
    write_table(HERE / "README.md", f"{result_table(record, len(test))}\n\n{sweep_table(record)}")
    print(f"{HERE}: results.json, learning_curve.png, README.md")


def result_table(record: dict[str, Any], problems: int) -> str:
    rows = [[f"{problems} later moves", *(heading for heading, _ in HEADINGS.values())]]
    rows += [[name, *cells([found])] for name, found in record["baselines"].items()]
    rows += [[name, *cells(found)] for name, found in record["trained"].items()]
    return markdown(rows)


def sweep_table(record: dict[str, Any]) -> str:
    rows = [["learning rate, validation moves", *(heading for heading, _ in HEADINGS.values())]]
    return markdown(rows + [[rate, *cells(found)] for rate, found in record["sweep"].items()])


def cells(found: list[dict[str, float]]) -> list[str]:
    """Mean, and the sample standard deviation over the seeds if there are several."""
    return [spread([figures[key] for figures in found], form) for key, (_, form) in HEADINGS.items()]


def draw(record: dict[str, Any]) -> None:
    """Direction on the test moves, size and penalty in training (mean of ten steps), one line a seed."""
    figure, panels = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    columns = {
        "val/test/accuracy": "Right directions, test moves (greedy)",
        "rewards/size_closeness/mean": "Closeness of size, in training",
        "rewards/VolatilityPenalty/mean": "Volatility penalty, in training",
    }
    for axes, (column, title) in zip(panels, columns.items(), strict=True):
        for kind, color in (("direction", "tab:orange"), ("full", "tab:blue")):
            for seed in SEEDS:
                points = read_figure(ROOT / folder(seed, f"{kind}-{record['learning_rate']}"), column)
                steps, values = zip(*points, strict=True)
                label = {"direction": "direction only", "full": "full reward"}[kind] if seed == SEEDS[0] else None
                if len(values) > SMOOTHED:
                    steps, values = steps[SMOOTHED - 1 :], np.convolve(values, np.full(SMOOTHED, 1 / SMOOTHED), "valid")
                axes.plot(steps, values, color=color, alpha=0.8, label=label)
        axes.set(title=title, xlabel="optimizer steps")
        axes.grid(alpha=0.3)
    for name, style in (("persistence", ":"), ("the market's rule (ceiling)", "--")):
        panels[0].axhline(record["baselines"][name]["direction"], color="gray", linestyle=style, label=name)
    panels[0].legend(fontsize=8)
    figure.savefig(HERE / "learning_curve.png", dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    main()
