"""Which questions are asked when: python -m experiments.curriculum.run"""

from __future__ import annotations

from pathlib import Path

from experiments.plots import Column, Panel, draw, table, write_table
from experiments.sweep import Run, run_sweep

HERE = Path(__file__).resolve().parent
SETTINGS = {
    "off": "--data.shuffle true",
    "by column": "--data.curriculum grpo_lightning.data.ByColumn --data.curriculum.column changes "
    "--data.curriculum.rollouts 15 --data.curriculum.mix 0.2",
    "by pass rate": "--config configs/curriculum/by_pass_rate.yaml",
}
OPTIONS = (
    "--config configs/quickstart.yaml --config experiments/embedded.yaml "
    "--config experiments/curriculum/curriculum.yaml"
)
HARD, EASY = "val/running_totals/level=5/accuracy", "val/running_totals/level=3/accuracy"
FIGURES = ("reward", "val/accuracy", EASY, HARD, "frac_reward_zero_std", "grad_norm", "curriculum/level")
PANELS = (
    Panel("reward", "Mean reward of the questions asked", "share of right answers", smooth=3),
    Panel("val/accuracy", "Greedy accuracy, held-out problems", "%", scale=100),
    Panel(HARD, "The same, of those with 5 changes", "%", scale=100),
    Panel("frac_reward_zero_std", "Groups without a signal", "share of groups", smooth=5),
)
COLUMNS = (
    Column("greedy accuracy after 10 rollouts (%)", lambda run: run.values("val/accuracy")[1], ".1%"),
    Column("after 20 (%)", lambda run: run.values("val/accuracy")[2], ".1%"),
    Column("after 30 (%)", lambda run: run.last("val/accuracy"), ".1%"),
    Column("3 changes, after 30 (%)", lambda run: run.last(EASY), ".1%"),
    Column("5 changes, after 30 (%)", lambda run: run.last(HARD), ".1%"),
    Column("groups without a signal, all (%)", lambda run: run.mean("frac_reward_zero_std"), ".1%"),
    Column("the same, last 10 (%)", lambda run: run.last("frac_reward_zero_std", points=10), ".1%"),
    Column("reward, last 5 rollouts (%)", lambda run: run.last("reward", points=5), ".1%"),
)


def main() -> None:
    show(run_sweep("curriculum", SETTINGS, options=OPTIONS, figures=FIGURES))


def show(runs: list[Run]) -> None:
    """Plot and table of a record, also of one that ``read_results`` has read."""
    draw(runs, PANELS, HERE / "plot.png")
    write_table(HERE / "README.md", page(runs))


def page(runs: list[Run]) -> str:
    """What README.md shows of the record."""
    return table(runs, COLUMNS, heading="curriculum")


if __name__ == "__main__":
    main()
