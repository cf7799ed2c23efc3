"""What each of the means gains at W2: python -m experiments.benchmark.means

The training phases of our trainer, nothing generated: as it is shipped, padded instead of packed, and padded with all
logits at once. The forms take turns, each run in a new process; what is finished is kept in runs/benchmark/.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from pathlib import Path
from typing import Any

from experiments.benchmark.job import NONE, Job, Recording
from experiments.benchmark.process import measure
from experiments.benchmark.report import TRAINING
from experiments.benchmark.run import base_job
from experiments.benchmark.workloads import RUNS, Sources, prepare
from experiments.machine import machine

HERE = Path(__file__).resolve().parent
RECORD = HERE / "means.json"
WORKLOAD = "W2"
REPEATS = 3
PLAIN = "experiments.plain_form.plain.PlainGRPOModule"
FORMS: dict[str, dict[str, Any]] = {
    "as shipped": {},
    "padded": {"options": {"packing": False}},
    "as shipped, micro-batch 16": {"rows": 16},
    "padded, micro-batch 16": {"rows": 16, "options": {"packing": False}},
    "padded, all logits at once, micro-batch 16": {"rows": 16, "options": {"packing": False}, "module": PLAIN},
}


def main() -> None:
    model = prepare(WORKLOAD, Sources())
    job = dataclasses.replace(base_job(WORKLOAD, model, Recording(RUNS / WORKLOAD)), engine=NONE, steps=1)
    runs: dict[str, list[dict[str, float]]] = {form: [] for form in FORMS}
    for repeat in range(REPEATS):
        for form, change in FORMS.items():
            runs[form].append(one(dataclasses.replace(job, seed=repeat, **change), form))
    record = {"machine": machine(), "commit": job.commit, "runs": runs}
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    write(record)


def one(job: Job, form: str) -> dict[str, float]:
    """Seconds of the training phases, and MiB above load."""
    result = measure(job, RUNS / WORKLOAD / "means" / f"{form.replace(', ', '-').replace(' ', '-')}-{job.seed}")
    seconds = statistics.fmean(sum(step.get(phase, 0.0) for phase in TRAINING) for step in result["steps"][1:])
    found = {"seconds": round(seconds, 3), "memory": round(result["memory"]["above_load"])}
    print(f"{form}: {found['seconds']} s, {found['memory']} MiB above load", flush=True)
    return found


def table(record: dict[str, Any]) -> list[list[str]]:
    """Medians, least and greatest."""
    rows = [["form", "training phases (s)", "peak above load (MiB)"]]
    for form, runs in record["runs"].items():
        seconds, memory = ([run[name] for run in runs] for name in ("seconds", "memory"))
        spread = f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"
        rows.append([form, spread, f"{statistics.median(memory):.0f}"])
    return rows


def write(record: dict[str, Any]) -> None:
    """The table into the page."""
    from experiments.plots import markdown, write_table

    write_table(HERE / "README.md", markdown(table(record)), name="means")


if __name__ == "__main__":
    main()
