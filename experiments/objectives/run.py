"""The published recipes side by side: python -m experiments.objectives.run"""

from __future__ import annotations

from pathlib import Path

from experiments.plots import Column, Panel, draw, table, write_table
from experiments.sweep import Run, run_sweep

HERE = Path(__file__).resolve().parent
RECIPES = ("grpo", "r1", "dr_grpo", "dapo", "gspo", "cispo", "sapo", "rloo", "reinforce_pp")
PROMPTS, GROUP, ROLLOUTS, TRIES = 16, 8, 20, 3
SETTINGS = {recipe: f"--config configs/objective/{recipe}.yaml" for recipe in RECIPES}
# Prompts for as many tries as DAPO may make; the others stop after the first third of them.
OPTIONS = (
    "--config configs/quickstart.yaml --config experiments/embedded.yaml "
    f"--model.lr 1e-5 --rollout.updates_per_rollout 2 --rollout.passes 2 --data.prompts_per_step {PROMPTS} "
    f"--data.source.size {PROMPTS * ROLLOUTS * TRIES} --trainer.limit_train_batches {ROLLOUTS}"
)
FIGURES = (
    "reward",
    "val/accuracy",
    "clip_ratio/region_mean",
    "cispo_clip_ratio",
    "grad_norm",
    "entropy",
    "completions/mean_length",
    "rollout/tries",
)
PANELS = (
    Panel("reward", "Mean reward of a rollout", "share of right answers", smooth=3),
    Panel("val/accuracy", "Greedy accuracy, held-out problems", "%", scale=100),
    Panel("grad_norm", "Gradient norm, before it is cut to 1", smooth=3),
    Panel("entropy", "Entropy", "nats a token", smooth=3),
)


def clipped(run: Run) -> float:
    """Share of trained tokens that a bound takes out, mean over all steps; 0 where the recipe has no bound."""
    return run.mean("clip_ratio/region_mean") or run.mean("cispo_clip_ratio") or 0.0


def norms_above_one(run: Run) -> float:
    """Share of steps whose gradient ``--model.max_grad_norm`` cuts."""
    norms = run.values("grad_norm")
    return sum(norm > 1 for norm in norms) / len(norms)


def completions(run: Run) -> float:
    """Sampled for each rollout, those that dynamic sampling passes over included."""
    return PROMPTS * GROUP * (run.mean("rollout/tries") or 1)


COLUMNS = (
    Column("rollouts to 70% reward", lambda run: run.rollouts_to("reward", 0.7, points=3), ".0f"),
    Column("reward, last 5 rollouts (%)", lambda run: run.last("reward", points=5), ".1%"),
    Column("greedy accuracy, half way (%)", lambda run: run.values("val/accuracy")[1], ".1%"),
    Column("greedy accuracy, end (%)", lambda run: run.last("val/accuracy"), ".1%"),
    Column("clipped tokens (%)", clipped, ".2%"),
    Column("gradient norm", lambda run: run.mean("grad_norm"), ".2f"),
    Column("steps cut to norm 1 (%)", norms_above_one, ".0%"),
    Column("entropy, last 5", lambda run: run.last("entropy", points=20), ".3f"),
    Column("completions a rollout", completions, ".0f"),
)


def main() -> None:
    show(run_sweep("objectives", SETTINGS, options=OPTIONS, figures=FIGURES))


def show(runs: list[Run]) -> None:
    """Plot and table of a record, also of one that ``read_results`` has read."""
    draw(runs, PANELS, HERE / "plot.png")
    write_table(HERE / "README.md", page(runs))


def page(runs: list[Run]) -> str:
    """What README.md shows of the record."""
    return table(runs, COLUMNS, heading="recipe")


if __name__ == "__main__":
    main()
