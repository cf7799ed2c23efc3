"""Right answers paid, against coins tossed: python -m experiments.random_rewards.run"""

from __future__ import annotations

from pathlib import Path

from experiments.plots import Column, Panel, draw, table, write_table
from experiments.sweep import Run, run_sweep

HERE = Path(__file__).resolve().parent
RIGHT = "grpo_lightning.data.arithmetic.running_total_accuracy"
COIN = "experiments.random_rewards.rewards.coin_toss"
COIN_PAID = f'--rollout.rewards "[{COIN},{RIGHT}]" --rollout.reward_weights "[1,0]"'  # right answers only counted
SETTINGS = {
    "right answers": f'--rollout.rewards "[{RIGHT}]"',
    "coin": COIN_PAID,
    "right answers, 4 passes": f'--rollout.rewards "[{RIGHT}]" --rollout.passes 4',
    "coin, 4 passes": f"{COIN_PAID} --rollout.passes 4",
    "coin, 4 passes, no clipping": f"{COIN_PAID} --rollout.passes 4 --model.objective.epsilon 1000 "
    "--model.objective.epsilon_high 1000",
}
ACCURACY = "rewards/running_total_accuracy/mean"
FIGURES = (ACCURACY, "val/accuracy", "completions/mean_length", "entropy", "clip_ratio/region_mean", "reward")
PANELS = (
    Panel(ACCURACY, "Right answers in training", "%", smooth=3, scale=100),
    Panel("val/accuracy", "Greedy accuracy, held-out problems", "%", scale=100),
    Panel("completions/mean_length", "Mean completion length", "tokens", smooth=3),
    Panel("entropy", "Entropy", "nats a token", smooth=3),
)
COLUMNS = (
    Column("right at the start, 3 rollouts (%)", lambda run: sum(run.values(ACCURACY)[:3]) / 3, ".1%"),
    Column("right at the end, 10 rollouts (%)", lambda run: run.last(ACCURACY, points=10), ".1%"),
    Column("greedy accuracy, start (%)", lambda run: run.values("val/accuracy")[0], ".1%"),
    Column("greedy accuracy, end (%)", lambda run: run.last("val/accuracy"), ".1%"),
    Column("length, last 10", lambda run: run.last("completions/mean_length", points=10), ".1f"),
    Column("entropy, last 10", lambda run: run.last("entropy", points=10), ".3f"),
    Column("clipped tokens (%)", lambda run: run.mean("clip_ratio/region_mean"), ".2%"),
)


def main() -> None:
    runs = run_sweep(
        "random_rewards",
        SETTINGS,
        options=f"--config configs/quickstart.yaml --config experiments/embedded.yaml --data.source.size {32 * 40}",
        figures=FIGURES,
    )
    show(runs)


def show(runs: list[Run]) -> None:
    """Plot and table of a record, also of one that ``read_results`` has read."""
    draw(runs, PANELS, HERE / "plot.png")
    write_table(HERE / "README.md", page(runs))


def page(runs: list[Run]) -> str:
    """What README.md shows of the record."""
    return table(runs, COLUMNS)


if __name__ == "__main__":
    main()
