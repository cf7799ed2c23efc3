"""GRPO on real pretrained weights: Gemma 3 270M (base) on GSM8K, a few optimizer steps, everything measured.

python -m experiments.real_weights.run --precision bf16-mixed --steps 10
python -m experiments.real_weights.run --precision 32-true --steps 5

One `fit` evaluates, trains, evaluates again and exports; one `validate` reads the export back and asks the same
problems; then the export is compared with the checkpoint and with the weights it began with. Everything is done by the
project's own command line; this script calls it and reads what it wrote.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CONFIG = f"experiments/{HERE.name}/gemma3_270m.yaml"
FIGURES = (
    "grad_norm",
    "sampling/logp_difference/mean",
    "sampling/logp_difference/max",
    "reward",
    "rewards/gsm8k_accuracy/mean",
    "rewards/solution_overlap/mean",
    "frac_reward_zero_std",
    "rollout/frac_dropped_sequences",
    "entropy",
    "skipped_steps",
    "completions/mean_length",
    "completions/clipped_ratio",
    "generated_tokens_per_second",
    "time/sync",
    "time/generate",
    "time/update",
)
"""Columns of metrics.csv that are kept."""
ENVIRONMENT = ("OMP_NUM_THREADS", "MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_")
"""What changes speed and memory."""


def main() -> None:
    arguments = parse()
    start, run = time.perf_counter(), run_folder(arguments.precision)
    shared = ["--config", CONFIG, "--seed_everything", str(arguments.seed), *data_options(arguments)]
    shared += ["--trainer.precision", arguments.precision, "--trainer.default_root_dir", str(run)]
    length = ["--trainer.max_steps", str(arguments.steps), "--trainer.val_check_interval", str(arguments.steps)]
    memory = command_line("fit", *shared, "--model.policy", arguments.policy, *length, *arguments.options)
    command_line("validate", *shared, "--model.policy", str(run / "hf"), *arguments.options)

    from experiments.real_weights.measure import (
        compare_weights,  # imports torch, which the two commands above had better not wait for
    )

    results = {
        "precision": arguments.precision,
        "seed": arguments.seed,
        "policy": "a local folder" if Path(arguments.policy).exists() else arguments.policy,
        "options": arguments.options,
        "environment": {name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
        "fit_peak_memory_gib": memory,
        "completions_per_step": pq.read_metadata(run / "samples" / "rollout_000001.parquet").num_rows,
        "steps": steps(run),
        "evaluations": evaluations(run),
        "answers_equal_before_and_after": equal_answers(run, answers(0), answers(arguments.steps)),
        "reloaded_answers_equal": equal_answers(run, answers(arguments.steps), answers(None)),
        "weights": compare_weights(arguments.policy, run, steps=arguments.steps),
        "seconds": round(time.perf_counter() - start),
    }
    results["checks"] = checks(results)
    (run / "results.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    for name, passed in results["checks"].items():
        print(f"{'yes' if passed else 'NO ':<3}  {name}")
    print(f"{run / 'results.json'}  ({results['seconds']} s)")
    sys.exit(not all(results["checks"].values()))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A few GRPO steps of Gemma 3 270M on GSM8K.")
    parser.add_argument("--precision", choices=("bf16-mixed", "32-true"), default="bf16-mixed")
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--policy", default="google/gemma-3-270m", help="hub id or folder")
    parser.add_argument("--train", help="JSON Lines file of GSM8K's train split; default: the hub's openai/gsm8k")
    parser.add_argument("--test", help="JSON Lines file of its test split; default: the hub's openai/gsm8k")
    parser.add_argument("options", nargs="*", help="passed on to both commands, after `--`")
    arguments = parser.parse_args()
    # The commands run in the repository's root, the paths are the caller's.
    for name in ("policy", "train", "test"):
        value = getattr(arguments, name)
        if value is not None and Path(value).exists():
            setattr(arguments, name, str(Path(value).resolve()))
    return arguments


def run_folder(precision: str) -> Path:
    return ROOT / "runs" / "real_weights" / precision


def data_options(arguments: argparse.Namespace) -> list[str]:
    options = ["--data.source.path", arguments.train] if arguments.train else []
    if arguments.test:
        source = {"class_path": "grpo_lightning.data.GSM8K", "init_args": {"path": arguments.test}}
        options += ["--data.eval_sources", json.dumps([source])]
    return options


def command_line(command: str, *options: str) -> float:
    """Run ``python -m grpo_lightning``; stop with its exit code if it fails. Returns its peak memory in GiB."""
    process = subprocess.Popen([sys.executable, "-m", "grpo_lightning", command, *options], cwd=ROOT)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(process.returncode)
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB on Linux
    return round(usage.ru_maxrss * unit / 2**30, 2)


def steps(run: Path) -> list[dict[str, float | None]]:
    """One entry per optimizer step; None where a step without signal has no such figure."""
    with (run / "metrics.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["grad_norm"]]
    return [
        {"step": int(row["step"]), **{name: float(row[name]) if row[name] else None for name in FIGURES}}
        for row in rows
    ]


def evaluations(run: Path) -> dict[str, Any]:
    """Greedy, on the same problems: before training, after it, and of the export that was read back."""
    lines = [json.loads(line) for line in (run / "evaluations.jsonl").read_text("utf-8").splitlines()]
    kept = ("problems", "accuracy", "accuracy_interval", "mean_length", "clipped_ratio")
    found = zip(("before", "after", "export"), (lines[0], lines[1], lines[-1]), strict=True)
    return {stage: {name: line[name] for name in kept} for stage, line in found}


def answers(step: int | None) -> str:
    """The file with the answers at a step of the fit, or with those that the export gave."""
    return "val_gsm8k.jsonl" if step is None else f"val_gsm8k_step{step:06d}.jsonl"


def equal_answers(run: Path, one: str, other: str) -> float:
    """Share of the greedy answers that are the same in two files of ``samples/``."""
    first, second = (
        [json.loads(line)["completion"] for line in (run / "samples" / name).read_text("utf-8").splitlines()]
        for name in (one, other)
    )
    return sum(a == b for a, b in zip(first, second, strict=True)) / len(first)


def checks(results: dict[str, Any]) -> dict[str, bool]:
    """What the run is to show."""
    gaps = [step["sampling/logp_difference/mean"] for step in results["steps"]]
    bound = 1e-4 if results["precision"] == "32-true" else 0.05
    weights = results["weights"]
    return {
        "every gradient norm is above 0": all(step["grad_norm"] > 0 for step in results["steps"]),
        "every tensor of the model has moved": weights["tensors_moved"] == weights["tensors"],
        f"sampler and trainer differ by less than {bound:g} nats on average after every sync": max(gaps) < bound,
        "no gap is more than twice the first": max(gaps) < 2 * gaps[0],
        "the export holds the checkpoint's weights, bit by bit": weights["export_minus_checkpoint"] == 0,
        "the export gives the checkpoint's logits in transformers": weights["export_minus_checkpoint_logits"] == 0,
        "the export gives the same greedy answers as the policy in memory": results["reloaded_answers_equal"] == 1,
    }


if __name__ == "__main__":
    main()
