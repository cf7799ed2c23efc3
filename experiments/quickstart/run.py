"""The quickstart: make a tiny base model, train it by GRPO, compare before and after, write the run's report.

python -m experiments.quickstart.run [--seed 0] [--engine vllm|transformers]

Everything is done by the project's own command line; this script only calls it and reads what it wrote.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from experiments.base_model import command_line, quickstart_base, run_folder
from experiments.plots import Panel, draw
from experiments.sweep import Run, read_run
from grpo_lightning.data.arithmetic import is_step_by_step
from grpo_lightning.evaluation import wilson_interval
from grpo_lightning.records import read_records
from grpo_lightning.report.command import write_report

ENGINES = {"vllm": "grpo_lightning.engines.VLLMEngine", "transformers": "grpo_lightning.engines.TransformersEngine"}
PANELS = (
    Panel("reward", "Mean reward of a rollout", "share of right answers"),
    Panel("completions/mean_length", "Mean completion length", "tokens"),
    Panel("val/accuracy", "Greedy accuracy, held-out problems", "%", scale=100),
)
console = Console(highlight=False)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a tiny model with GRPO on this machine.")
    parser.add_argument("--seed", type=int, default=0, help="of the tiny model, its base training and GRPO")
    parser.add_argument("--engine", choices=sorted(ENGINES), help="default: vLLM if it is installed, else transformers")
    parser.add_argument("options", nargs="*", help="passed on to `fit`, after `--`: -- --model.lr 1e-4")
    arguments = parser.parse_args()
    start = time.perf_counter()
    base, run = quickstart_base(arguments.seed), run_folder(arguments.seed) / "grpo"
    console.rule("GRPO: 60 rollouts of 32 prompts x 8 completions")
    options = ["--model.policy", str(base), "--trainer.default_root_dir", str(run), *arguments.options]
    if arguments.engine:
        options += ["--rollout.engine", ENGINES[arguments.engine]]
    command_line("fit", "--config", "configs/quickstart.yaml", "--seed_everything", str(arguments.seed), *options)
    results = compare(run, arguments.seed)
    results["seconds"] = round(time.perf_counter() - start, 1)
    (run / "results.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    draw([curves(run, arguments.seed)], PANELS, run / "curves.png")
    write_report([run])
    show(results, run)


def compare(run: Path, seed: int) -> dict[str, Any]:
    """First and last evaluation of a run, side by side."""
    evaluations = read_records(run / "evaluations.jsonl")
    stages = {"before": evaluations[0], "after": evaluations[-1]}
    results: dict[str, Any] = {"seed": seed, "problems": int(evaluations[0]["problems"])}
    for stage, evaluation in stages.items():
        answers = read_records(run / "samples" / f"val_running_totals_step{evaluation['step']:06d}.jsonl")
        greedy = [a for a in answers if a["greedy"]]
        sampled = [a for a in answers if not a["greedy"]]
        results[stage] = {
            "step": evaluation["step"],
            "greedy_accuracy": evaluation["accuracy"],
            "greedy_interval": evaluation["accuracy_interval"],
            "sampled_accuracy": evaluation["pass@1"],
            # Samples of one problem are alike: the interval counts problems, not samples.
            "sampled_interval": wilson_interval(evaluation["pass@1"] * len(greedy), len(greedy)),
            "mean_length": sum(a["tokens"] for a in sampled) / len(sampled),
            "step_by_step": sum(is_step_by_step(a["completion"]) for a in sampled) / len(sampled),
            "examples": [{key: a[key] for key in ("prompt", "answer", "completion", "correct")} for a in greedy[:3]],
        }
    return results


def curves(run: Path, seed: int) -> Run:
    """What ``PANELS`` show of a run."""
    return read_run(run, [panel.figure for panel in PANELS], setting="GRPO", seed=seed)


def show(results: dict[str, Any], run: Path) -> None:
    """The table, a few answers, and where everything is."""
    table = Table(title=f"{results['problems']} held-out problems, 95% intervals")
    for heading in ("", "before", "after"):
        table.add_column(heading, justify="left" if not heading else "right")
    before, after = results["before"], results["after"]
    for name, key, interval in (
        ("greedy accuracy", "greedy_accuracy", "greedy_interval"),
        ("sampled accuracy", "sampled_accuracy", "sampled_interval"),
    ):
        cells = [
            f"{100 * s[key]:.1f}% [{100 * s[interval][0]:.1f}, {100 * s[interval][1]:.1f}]" for s in (before, after)
        ]
        table.add_row(name, *cells)
    table.add_row("mean sampled length (tokens)", *(f"{s['mean_length']:.1f}" for s in (before, after)))
    table.add_row("step-by-step answers", *(f"{100 * s['step_by_step']:.0f}%" for s in (before, after)))
    console.print(table)
    for old, new in zip(before["examples"], after["examples"], strict=True):
        console.print(f"\n[bold]{old['prompt']}[/bold]  (answer: {old['answer']})")
        for stage, answer in (("before", old), ("after ", new)):
            console.print(f"  {stage} {'right' if answer['correct'] else 'wrong'}  ", end="")
            console.print(answer["completion"], markup=False)
    # As the caller would type them, and not through the virtual environment's link to another interpreter.
    run, python = (Path(os.path.relpath(path)) for path in (run, sys.executable))
    console.print(f"\n{results['seconds']:.0f} s in all.")
    console.print(f"Trained model: {run / 'hf'}\nCurves:        {run / 'curves.png'}, {run / 'metrics.csv'}")
    console.print(f"               {python.parent / 'tensorboard'} --logdir {run / 'tensorboard'}", soft_wrap=True)
    console.print(f"This table:    {run / 'results.json'}")
    console.print(
        f"Report:        {run / 'report.html'}  (curves, samples, settings; open it in a browser)", soft_wrap=True
    )
    console.print(
        f"Ask it:        {python} -m grpo_lightning predict --config {run / 'config.yaml'} --model.policy {run / 'hf'} "
        f"--prompt '{before['examples'][0]['prompt']}'",
        soft_wrap=True,
    )


if __name__ == "__main__":
    main()
