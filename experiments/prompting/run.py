"""Prompting styles and worked chains, before and after GRPO: python -m experiments.prompting.run"""

from __future__ import annotations

from pathlib import Path

from experiments.plots import Column, Panel, draw, table, write_table
from experiments.prompting.start_models import start_models
from experiments.sweep import START, Run, run_sweep

HERE = Path(__file__).resolve().parent
MIXED, CHAINS = f"--model.policy {START}/mixed/hf", f"--model.policy {START}/chains/hf"
SETTINGS = {
    "question alone": f"{MIXED} --data.template.style direct",
    "two answers shown": f"{MIXED} --data.template.style examples",
    "two worked answers shown": f"{MIXED} --data.template.style worked_examples",
    "question alone, after worked chains": f"{CHAINS} --data.template.style direct",
}
OPTIONS = (
    "--config configs/quickstart.yaml --config experiments/embedded.yaml --config experiments/prompting/prompting.yaml"
)
GREEDY = "val/running_totals/mean_length"
FIGURES = ("reward", "val/accuracy", GREEDY, "completions/mean_length", "entropy", "frac_reward_zero_std")
PANELS = (
    Panel("reward", "Mean reward of a rollout", "share of right answers", smooth=3),
    Panel("val/accuracy", "Greedy accuracy, held-out problems", "%", scale=100),
    Panel("completions/mean_length", "Mean completion length", "tokens", smooth=3),
    Panel("entropy", "Entropy", "nats a token", smooth=3),
)
COLUMNS = (
    Column("greedy accuracy, before GRPO (%)", lambda run: run.values("val/accuracy")[0], ".1%"),
    Column("greedy length, before", lambda run: run.values(GREEDY)[0], ".1f"),
    Column("reward, first rollout (%)", lambda run: run.values("reward")[0], ".1%"),
    Column("greedy accuracy after 10 rollouts (%)", lambda run: run.values("val/accuracy")[1], ".1%"),
    Column("after 20 (%)", lambda run: run.last("val/accuracy"), ".1%"),
    Column("reward, last 5 rollouts (%)", lambda run: run.last("reward", points=5), ".1%"),
    Column("greedy length, end", lambda run: run.last(GREEDY), ".1f"),
)


def main() -> None:
    show(run_sweep("prompting", SETTINGS, options=OPTIONS, figures=FIGURES, policy=start_models))


def show(runs: list[Run]) -> None:
    """Plot and table of a record, also of one that ``read_results`` has read."""
    draw(runs, PANELS, HERE / "plot.png")
    write_table(HERE / "README.md", page(runs))


def page(runs: list[Run]) -> str:
    """What README.md shows of the record."""
    return table(runs, COLUMNS, heading="prompt")


if __name__ == "__main__":
    main()
