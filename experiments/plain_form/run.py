"""The quickstart with everything that makes it fast, and without: python -m experiments.plain_form.run"""

from __future__ import annotations

from pathlib import Path

from experiments.plots import Column, Panel, draw, table, write_table
from experiments.sweep import Run, run_sweep

HERE = Path(__file__).resolve().parent
PLAIN = "--model experiments.plain_form.plain.PlainGRPOModule --model.packing false"
VLLM = "--config configs/engine/vllm.yaml --rollout.engine.kv_cache_gib 0.1"
SETTINGS = {
    "as shipped": VLLM,
    "padded": f"{VLLM} --model.packing false",
    "plain": f"{VLLM} {PLAIN}",
    "plain, sampled with transformers": PLAIN,
}
FIGURES = ("reward", "val/accuracy", "grad_norm", "completions/mean_length", "entropy")
PANELS = (
    Panel("reward", "Mean reward of a rollout", "share of right answers", smooth=3),
    Panel("val/accuracy", "Greedy accuracy, held-out problems", "%", scale=100),
    Panel("grad_norm", "Gradient norm", smooth=3),
    Panel("completions/mean_length", "Mean completion length", "tokens", smooth=3),
)
COLUMNS = (
    Column("rollouts to 80% reward", lambda run: run.rollouts_to("reward", 0.8), ".0f"),
    Column("reward, last 10 rollouts (%)", lambda run: run.last("reward", points=10), ".1%"),
    Column("greedy accuracy, end (%)", lambda run: run.last("val/accuracy"), ".1%"),
    Column("gradient norm, mean", lambda run: run.mean("grad_norm"), ".3f"),
    Column("length, last 10", lambda run: run.last("completions/mean_length", points=10), ".1f"),
    Column("entropy, last 10", lambda run: run.last("entropy", points=10), ".3f"),
)


def main() -> None:
    runs = run_sweep(
        "plain_form",
        SETTINGS,
        options="--config configs/quickstart.yaml --config experiments/embedded.yaml",
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
