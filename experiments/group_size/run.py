"""Group sizes at equal numbers of completions: python -m experiments.group_size.run"""

from __future__ import annotations

from pathlib import Path

from experiments.plots import Column, Panel, draw, table, write_table
from experiments.sweep import Run, run_sweep

HERE = Path(__file__).resolve().parent
COMPLETIONS, ROLLOUTS = 256, 40
SETTINGS = {
    f"G = {g}": f"--rollout.group_size {g} --data.prompts_per_step {COMPLETIONS // g} "
    f"--data.source.size {ROLLOUTS * COMPLETIONS // g}"
    for g in (2, 4, 8, 16, 32)
}
FIGURES = ("reward", "val/accuracy", "frac_reward_zero_std", "grad_norm", "completions/mean_length", "time/update")
PANELS = (
    Panel("reward", "Mean reward of a rollout", "share of right answers", smooth=3),
    Panel("val/accuracy", "Greedy accuracy, held-out problems", "%", scale=100),
    Panel("frac_reward_zero_std", "Groups without a signal", "share of groups", smooth=5),
    Panel("grad_norm", "Gradient norm", smooth=5),
)
COLUMNS = (
    Column("rollouts to 80% reward", lambda run: run.rollouts_to("reward", 0.8), ".0f"),
    Column("reward, last 10 rollouts (%)", lambda run: run.last("reward", points=10), ".1%"),
    Column("greedy accuracy, end (%)", lambda run: run.last("val/accuracy"), ".1%"),
    Column("groups without a signal, last 10 (%)", lambda run: run.last("frac_reward_zero_std", points=10), ".1%"),
)


def main() -> None:
    runs = run_sweep(
        "group_size",
        SETTINGS,
        options="--config configs/quickstart.yaml --config experiments/embedded.yaml",
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
