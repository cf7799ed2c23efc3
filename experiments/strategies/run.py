"""The same runs in one process, under DDP and under FSDP2: python -m experiments.strategies.run"""

from __future__ import annotations

import csv
import json
import shlex
from pathlib import Path

from experiments.plots import Panel, by_setting, draw, markdown, spread, write_table
from experiments.sweep import ROOT, Run, run_sweep

HERE = Path(__file__).resolve().parent
PROMPTS, ROLLOUTS = 16, 10
ALONE = "one process"
TWO = "--trainer.accelerator cpu --trainer.devices 2"
SETTINGS = {
    ALONE: "--config configs/strategy/single.yaml",
    "DDP, 2 processes": f"--config configs/strategy/ddp.yaml {TWO}",
    "FSDP2, 2 processes": f"--config configs/strategy/fsdp2.yaml {TWO}",
}
OPTIONS = (
    "--config configs/quickstart.yaml --config configs/objective/grpo.yaml --config experiments/embedded.yaml "
    f"--rollout.updates_per_rollout 2 --rollout.passes 2 --data.prompts_per_step {PROMPTS} "
    f"--data.source.size {PROMPTS * ROLLOUTS} --trainer.val_check_interval {ROLLOUTS // 2}"
)
FIGURES = ("reward", "val/accuracy", "grad_norm", "kl", "completions/mean_length")
COMPARED = {
    "reward": "reward of a rollout",
    "completions/mean_length": "mean length of a rollout's completions, tokens",
    "val/accuracy": "greedy accuracy",
    "grad_norm": "gradient norm of a step, relative",
    "kl": "KL of a step, relative",
}
PANELS = (
    Panel("reward", "Mean reward of a rollout", "share of right answers"),
    Panel("val/accuracy", "Greedy accuracy, held-out problems", "%", scale=100),
    Panel("grad_norm", "Gradient norm"),
    Panel("kl", "KL to the base model (k3)", "nats a token"),
)


def main() -> None:
    runs = run_sweep("strategies", SETTINGS, options=OPTIONS, figures=FIGURES)
    found: dict[str, list[dict[str, float]]] = {setting: [] for setting in SETTINGS if setting != ALONE}
    for run in runs:
        if run.setting != ALONE:
            alone = next(other for other in runs if (other.setting, other.seed) == (ALONE, run.seed))
            found[run.setting].append(differences(metrics(alone), metrics(run)))
    (HERE / "differences.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    show(runs)


def metrics(run: Run) -> list[dict[str, str]]:
    """All digits of a run's metrics.csv, of which the record keeps four."""
    words = shlex.split(run.command)
    folder = ROOT / words[words.index("--trainer.default_root_dir") + 1]
    with (folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def differences(alone: list[dict[str, str]], other: list[dict[str, str]]) -> dict[str, float]:
    """How far each figure of a run is from that of one process, at the step where it is furthest.

    Rewards, accuracies and lengths are counts of what was sampled, so their difference is taken as it is; norms and KL
    are compared relative to their size.
    """
    found = {}
    for figure in COMPARED:
        pairs = [
            (float(a[figure]), float(b[figure])) for a, b in zip(alone, other, strict=True) if a[figure] and b[figure]
        ]
        relative = figure in ("grad_norm", "kl")
        found[figure] = max(abs(b - a) / (max(abs(a), 1e-6) if relative else 1) for a, b in pairs)
    return found


def show(runs: list[Run]) -> None:
    """Plot and table of a record, also of one that ``read_results`` has read."""
    draw(runs, PANELS, HERE / "plot.png")
    write_table(HERE / "README.md", page(runs))


def page(runs: list[Run]) -> str:
    """What README.md shows of the record."""
    found = json.loads((HERE / "differences.json").read_text("utf-8"))
    rows = [["strategy", "reward, last 3 rollouts (%)", "greedy accuracy, end (%)", "gradient norm", "seconds"]]
    apart = [["largest difference to one process", *found]]
    for setting, seeds in by_setting(runs).items():
        rewards = spread([run.last("reward", points=3) for run in seeds], ".1%")
        accuracy = spread([run.last("val/accuracy") for run in seeds], ".1%")
        norms = spread([run.mean("grad_norm") for run in seeds], ".3f")
        rows.append([setting, rewards, accuracy, norms, spread([run.seconds for run in seeds], ".0f")])
    for figure, text in COMPARED.items():
        apart.append([text, *(f"{max(seed[figure] for seed in seeds):.1g}" for seeds in found.values())])
    return f"{markdown(rows)}\n\n{markdown(apart)}"


if __name__ == "__main__":
    main()
