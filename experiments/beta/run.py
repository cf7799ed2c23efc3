"""Weights of the KL term: python -m experiments.beta.run"""

from __future__ import annotations

from pathlib import Path

from experiments.plots import Column, Panel, draw, table, write_table
from experiments.sweep import Run, run_sweep

HERE = Path(__file__).resolve().parent
MEASURED_ONLY = 1e-8
"""A weight that pulls on nothing, for which the KL to the reference is measured all the same."""
SETTINGS = {
    f"beta = {beta:g}": f"--model.objective.beta {beta or MEASURED_ONLY:g} --data.source.size {32 * 60}"
    for beta in (0, 0.01, 0.04, 0.1)
}
FIGURES = ("reward", "val/accuracy", "kl", "completions/mean_length", "entropy", "val/running_totals/mean_length")
PANELS = (
    Panel("reward", "Mean reward of a rollout", "share of right answers", smooth=3),
    Panel("val/accuracy", "Greedy accuracy, held-out problems", "%", scale=100),
    Panel("kl", "KL to the base model (k3)", "nats a token", smooth=3),
    Panel("completions/mean_length", "Mean completion length", "tokens", smooth=3),
)


def peak(run: Run) -> float:
    """Rollout at which the KL, as a mean of ten rollouts, is highest."""
    values = run.values("kl")
    means = [sum(values[end - 10 : end]) for end in range(10, len(values) + 1)]
    return means.index(max(means)) + 10


COLUMNS = (
    Column("rollouts to 80% reward", lambda run: run.rollouts_to("reward", 0.8), ".0f"),
    Column("reward, last 10 rollouts (%)", lambda run: run.last("reward", points=10), ".1%"),
    Column("greedy accuracy, end (%)", lambda run: run.last("val/accuracy"), ".1%"),
    Column("KL, last 10", lambda run: run.last("kl", points=10), ".3f"),
    Column("KL highest at rollout", peak, ".0f"),
    Column("length, last 10", lambda run: run.last("completions/mean_length", points=10), ".1f"),
    Column("entropy, last 10", lambda run: run.last("entropy", points=10), ".3f"),
)


def main() -> None:
    runs = run_sweep(
        "beta",
        SETTINGS,
        options="--config configs/quickstart.yaml --config configs/objective/grpo.yaml "
        "--config experiments/embedded.yaml",
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
