"""Everything behind the page's figures: three seeds, two rewards, one sweep. Runs that are done are not done again.

python -m experiments.custom_task.run
python -m experiments.custom_task.collect
"""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

from experiments.custom_task.baselines import measure
from experiments.custom_task.series import PriceMoves

CONFIGS = "experiments/custom_task"
RUNS = Path("runs/custom_task")
SEEDS = (0, 1, 2)
LEARNING_RATES = ("1e-4", "3e-4", "1e-3")
STEPS = 100
"""Optimizer steps of GRPO, and of supervised training that goes on for as long."""
DIRECTION_ONLY = ("--rollout.reward_weights", "[1,0,0]")


def main() -> None:
    for seed in SEEDS:
        make_start(seed)
        supervised_on(seed, "analyst")
        supervised_on(seed, "answer")
    for seed, rate in itertools.product(SEEDS, LEARNING_RATES):
        grpo(seed, f"full-{rate}", rate)
    rate = best_rate()
    print(f"learning rate {rate}: the highest full reward on the validation moves", flush=True)
    for seed in SEEDS:
        grpo(seed, f"direction-{rate}", rate, *DIRECTION_ONLY)


def make_start(seed: int) -> None:
    """A tiny model with random weights, and what supervised training makes of it."""
    tiny = RUNS / f"seed{seed}" / "tiny"
    if not tiny.is_dir():
        size = ("--hidden", "64", "--layers", "2", "--heads", "2", "--mlp", "256")
        python("grpo_lightning.data.tiny_model", str(tiny), "--seed", str(seed), *size)
    train(seed, "start", "supervised.yaml", tiny)


def supervised_on(seed: int, column: str) -> None:
    """From the start, on GRPO's rows and for as many steps: the analyst's forecasts once more, or what really came."""
    options = ("--data.source.split", "train", "--model.target_column", column, "--trainer.max_steps", str(STEPS))
    train(seed, f"supervised-{column}", "supervised.yaml", folder(seed, "start") / "hf", *options)


def grpo(seed: int, name: str, rate: str, *options: str) -> None:
    train(seed, name, "custom_task.yaml", folder(seed, "start") / "hf", "--model.lr", rate, *options)


def train(seed: int, name: str, config: str, policy: Path, *options: str) -> None:
    """One `fit`, and a `test` of what came out; begun afresh if it was interrupted."""
    run, began = folder(seed, name), time.perf_counter()
    if (run / "seconds.json").exists():
        return
    shutil.rmtree(run, ignore_errors=True)
    shared = ("--seed_everything", str(seed), "--trainer.default_root_dir", str(run))
    quiet = ("--trainer.enable_progress_bar", "false", "--trainer.enable_model_summary", "false")
    where = ("--model.policy", str(policy))
    python("grpo_lightning", "fit", "--config", f"{CONFIGS}/{config}", *shared, *where, *quiet, *options)
    seconds = round(time.perf_counter() - began, 1)
    where = ("--model.policy", str(run / "hf"))
    python("grpo_lightning", "test", "--config", f"{CONFIGS}/custom_task.yaml", *shared, *where, *quiet)
    (run / "seconds.json").write_text(json.dumps(seconds) + "\n")
    print(f"{run}: {seconds} s, {figures(seed, name, 'test')}", flush=True)


def python(module: str, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", module, *arguments], check=True)


def folder(seed: int, name: str) -> Path:
    return RUNS / f"seed{seed}" / name


def figures(seed: int, name: str, split: str) -> dict[str, float]:
    """How a trained policy's greedy forecasts fare."""
    lines = (folder(seed, name) / "samples" / f"test_{split}.jsonl").read_text("utf-8").splitlines()
    said = {record["row"]: record["completion"] for record in map(json.loads, lines)}
    rows = PriceMoves(split=split).rows()
    return measure([said[row] for row in range(len(rows))], rows)


def best_rate() -> str:
    """By the full reward on the validation moves, over the seeds; the test moves have no say."""

    def reward(rate: str) -> float:
        return sum(figures(seed, f"full-{rate}", "validation")["reward"] for seed in SEEDS)

    return max(LEARNING_RATES, key=reward)


if __name__ == "__main__":
    main()
