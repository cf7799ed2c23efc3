"""Times that a rollout is gone through: python -m experiments.passes.run"""

from __future__ import annotations

from pathlib import Path

from experiments.plots import Column, Panel, draw, table, write_table
from experiments.sweep import Run, run_sweep

HERE = Path(__file__).resolve().parent
SETTINGS = {f"{n} pass{'es' if n > 1 else ''}": f"--rollout.passes {n}" for n in (1, 2, 4, 5)}
FIGURES = ("reward", "val/accuracy", "clip_ratio/region_mean", "ratio_distance", "entropy", "time/update")
PANELS = (
    Panel("reward", "Mean reward of a rollout", "share of right answers", smooth=3),
    Panel("val/accuracy", "Greedy accuracy, held-out problems", "%", scale=100),
    Panel("clip_ratio/region_mean", "Clipped tokens", "%", smooth=3, scale=100),
    Panel("ratio_distance", "Distance of ratios from 1", "mean of |r - 1|", smooth=3),
)
COLUMNS = (
    Column("rollouts to 80% reward", lambda run: run.rollouts_to("reward", 0.8), ".0f"),
    Column("reward, last 10 rollouts (%)", lambda run: run.last("reward", points=10), ".1%"),
    Column("greedy accuracy, end (%)", lambda run: run.last("val/accuracy"), ".1%"),
    Column("clipped tokens (%)", lambda run: run.mean("clip_ratio/region_mean"), ".2%"),
    Column("mean of abs(r - 1)", lambda run: run.mean("ratio_distance"), ".4f"),
    Column("entropy, last 10", lambda run: run.last("entropy", points=10), ".3f"),
)


def main() -> None:
    runs = run_sweep(
        "passes",
        SETTINGS,
        options="--config configs/quickstart.yaml --config experiments/embedded.yaml "
        f"--model.objective experiments.passes.ratio_spread.RatioSpread --data.source.size {32 * 30}",
        figures=FIGURES,
    )
    show(runs)


def show(runs: list[Run]) -> None:
    """Plot and table of a record, also of one that ``read_results`` has read."""
    draw(runs, PANELS, HERE / "plot.png", ordered=True)
    write_table(HERE / "README.md", page(runs))


def page(runs: list[Run]) -> str:
    """What README.md shows of the record."""
    return table(runs, COLUMNS)


if __name__ == "__main__":
    main()
