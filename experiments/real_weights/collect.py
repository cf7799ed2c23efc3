"""The two runs as one record: results.json, and the tables in README.md between their marks.

python -m experiments.real_weights.collect
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from experiments.machine import processor, versions
from experiments.plots import markdown, write_table
from experiments.real_weights.run import CONFIG, run_folder

HERE = Path(__file__).resolve().parent
PRECISIONS = ("bf16-mixed", "32-true")


def main() -> None:
    runs = [json.loads((run_folder(precision) / "results.json").read_text("utf-8")) for precision in PRECISIONS]
    record = {
        "command": [
            f"python -m experiments.{HERE.name}.run --precision {run['precision']} --steps {len(run['steps'])} "
            f"--seed {run['seed']}" + (f" -- {' '.join(run['options'])}" if run["options"] else "")
            for run in runs
        ],
        "config": CONFIG,
        "machine": {"processor": processor(), "cores": os.cpu_count(), "memory_gib": _memory_gib(), "gpu": None},
        "versions": versions(),
        "runs": runs,
    }
    (HERE / "results.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    readme = HERE / "README.md"
    write_table(readme, tables(runs))
    print(f"{HERE / 'results.json'}, {readme}")


def tables(runs: list[dict[str, Any]]) -> str:
    """Both runs in Markdown: as a whole, then step by step."""
    rows = [["", *(f"`{run['precision']}`" for run in runs)]]
    for stage in ("before", "after", "export"):
        name = {"before": "before training", "after": "after training", "export": "the export, read back"}[stage]
        rows.append([f"greedy accuracy, {name}", *(_accuracy(run["evaluations"][stage]) for run in runs)])
    weights = [run["weights"] for run in runs]
    rows += [
        ["optimizer steps", *(str(len(run["steps"])) for run in runs)],
        ["completions in a step", *(str(run["completions_per_step"]) for run in runs)],
        ["answers that training left the same", *(_percent(run["answers_equal_before_and_after"]) for run in runs)],
        ["answers of the export equal to the policy's", *(_percent(run["reloaded_answers_equal"]) for run in runs)],
        ["export minus checkpoint, weights", *(f"{w['export_minus_checkpoint']:g}" for w in weights)],
        ["export minus checkpoint, logits", *(f"{w['export_minus_checkpoint_logits']:g}" for w in weights)],
        ["gradient norm, smallest to largest", *(_range(run, "grad_norm", ".2f") for run in runs)],
        ["tensors that moved", *(f"{w['tensors_moved']} of {w['tensors']}" for w in weights)],
        ["weights that moved", *(_percent(w["share_moved"]) for w in weights)],
        ["weights that moved as bfloat16 has them", *(_percent(w["share_moved_in_bfloat16"]) for w in weights)],
        ["largest change of a weight", *(f"{w['largest_change']:.2e}" for w in weights)],
        ["log-probs, last weights against first (nats)", *(f"{w['logprob_drift_mean']:.2e}" for w in weights)],
        ["sampler-trainer gap, mean (nats)", *(_range(run, "sampling/logp_difference/mean", ".2e") for run in runs)],
        ["generated tokens per second", *(_range(run, "generated_tokens_per_second", ".0f") for run in runs)],
        ["weight sync (s)", *(_range(run, "time/sync", ".1f", first=1) for run in runs)],
        ["peak memory of `fit` (GiB)", *(f"{run['fit_peak_memory_gib']:.1f}" for run in runs)],
        ["whole run (min)", *(f"{run['seconds'] / 60:.0f}" for run in runs)],
    ]
    parts = [markdown(rows)]
    for run in runs:
        heading = ["step", "gradient norm", "gap mean", "gap max", "reward", "right", "overlap"]
        heading += ["equal groups", "tokens", "cut", "tokens/s", "sync s", "generate s", "update s"]
        lines = [heading]
        for step in run["steps"]:
            lines.append(
                [
                    str(step["step"]),
                    f"{step['grad_norm']:.2f}",
                    f"{step['sampling/logp_difference/mean']:.2e}",
                    f"{step['sampling/logp_difference/max']:.2e}",
                    f"{step['reward']:.3f}",
                    _percent(step["rewards/gsm8k_accuracy/mean"]),
                    f"{step['rewards/solution_overlap/mean']:.3f}",
                    _percent(step["frac_reward_zero_std"]),
                    f"{step['completions/mean_length']:.0f}",
                    _percent(step["completions/clipped_ratio"]),
                    f"{step['generated_tokens_per_second']:.0f}",
                    f"{step['time/sync']:.1f}",
                    f"{step['time/generate']:.0f}",
                    f"{step['time/update']:.0f}",
                ]
            )
        parts.append(f"`{run['precision']}`, each optimizer step:\n\n{markdown(lines)}")
    return "\n\n".join(parts)


def _accuracy(evaluation: dict[str, Any]) -> str:
    low, high = evaluation["accuracy_interval"]
    return f"{_percent(evaluation['accuracy'])} [{100 * low:.1f}, {100 * high:.1f}] of {evaluation['problems']:.0f}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def _range(run: dict[str, Any], name: str, form: str, *, first: int = 0) -> str:
    values = [step[name] for step in run["steps"][first:]]
    return f"{min(values):{form}} to {max(values):{form}}"


def _memory_gib() -> int:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)


if __name__ == "__main__":
    main()
