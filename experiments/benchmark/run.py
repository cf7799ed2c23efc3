"""TRL's GRPOTrainer and ours side by side on this machine: python -m experiments.benchmark.run [WORKLOAD ...]

Both are run in turn, each time in a new process; see README.md for what is equal and what is measured. A run that is
finished is kept in runs/benchmark/ and not made again (delete the folder to begin anew).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from experiments.base_model import ROOT
from experiments.benchmark.flops import step_flops
from experiments.benchmark.job import NONE, OURS, TRL, Job, Recording
from experiments.benchmark.process import measure
from experiments.benchmark.workloads import RUNS, WORKLOADS, Sources, Workload, prepare
from experiments.machine import commit, machine, versions
from grpo_lightning.models.flops import Group, Shape

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.json"
REPEATS = 5
TUNE, MAIN, ONCE = "tune", "main", "once"
"""What a run is for: finding TRL's best micro-batch, the comparison, and the settings that are run once."""


def main() -> None:
    arguments = parse()
    sources = Sources(gemma=arguments.gemma, gsm8k=arguments.gsm8k)
    record = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {"workloads": {}}
    for name in arguments.workloads:
        model = prepare(name, sources)
        recording = Recording(RUNS / name)
        found = {
            "machine": machine(),
            "versions": versions() | {"trl": version("trl")},
            "matmul": matmul_rates(),
            **describe(WORKLOADS[name], model, recording),
        }
        job = base_job(name, model, recording)
        found |= {"commit": job.commit, "runs": compare(name, job, repeats=arguments.repeats)}
        record["workloads"] = dict(sorted((record["workloads"] | {name: found}).items()))
        RESULTS.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    from experiments.benchmark.report import write

    write(record)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmark.run", description=__doc__.split("\n")[0])
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"default: all of {', '.join(WORKLOADS)}")
    parser.add_argument("--gemma", default=Sources.gemma, help="W3's model: hub id or folder")
    parser.add_argument("--gsm8k", help="JSON Lines file of GSM8K's train split; default: the hub's openai/gsm8k")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="runs of each side")
    arguments = parser.parse_args()
    for name in arguments.workloads:
        if name not in WORKLOADS:
            parser.error(f"there is no workload {name}; choose from {', '.join(WORKLOADS)}")
    arguments.workloads = arguments.workloads or list(WORKLOADS)
    for name in ("gemma", "gsm8k"):
        value = getattr(arguments, name)
        if value is not None and Path(value).exists():
            setattr(arguments, name, str(Path(value).resolve()))
    return arguments


def base_job(name: str, model: str, recording: Recording) -> Job:
    """The workload's job, of our trainer with its default engine."""
    workload = WORKLOADS[name]
    return Job(
        trainer=OURS,
        engine=workload.engine,
        model=model,
        data=str(RUNS / name),
        prompts_per_step=workload.prompts_per_step,
        group_size=workload.group_size,
        max_prompt_length=max(map(len, recording.groups)),
        max_completion_length=workload.max_completion_length,
        rows=workload.rows,
        precision=workload.precision,
        steps=workload.steps,
        kv_cache_gib=workload.kv_cache_gib,
        commit=commit(ROOT),
    )


def compare(name: str, ours: Job, *, repeats: int) -> list[dict[str, Any]]:
    """All runs of a workload, in turn."""
    workload, runs = WORKLOADS[name], []
    trl = dataclasses.replace(ours, trainer=TRL, engine="transformers")
    for job in tuning(workload, trl):
        runs.append(one(name, TUNE, job))
    best = dataclasses.replace(trl, rows=best_rows(runs))
    for job in [trl] if best == trl else [trl, best]:
        runs.append(one(name, TUNE, dataclasses.replace(job, engine=NONE, steps=1, completion_head=True)))
    sides = [ours, trl] + ([best] if best != trl else [])
    if ours.engine != "transformers":
        sides.insert(1, dataclasses.replace(ours, engine="transformers"))
    for repeat in range(repeats):
        for side in sides:
            runs.append(one(name, MAIN, dataclasses.replace(side, seed=repeat)))
    for change in workload.extra:
        for side in (ours, trl):
            runs.append(one(name, ONCE, dataclasses.replace(side, **change)))
    return runs


def tuning(workload: Workload, trl: Job) -> Iterator[Job]:
    """TRL's training phases at every micro-batch, and once with its default, gradient checkpointing."""
    trl = dataclasses.replace(trl, engine=NONE, steps=1)
    for rows in workload.trl_rows:
        yield dataclasses.replace(trl, rows=rows)
    yield dataclasses.replace(trl, checkpointing=True)


def best_rows(runs: list[dict[str, Any]]) -> int:
    """The micro-batch at which a step of TRL's takes least time."""
    tried = [run for run in runs if run["purpose"] == TUNE and not run["job"]["checkpointing"]]
    return min(tried, key=lambda run: sum(step["step"] for step in run["steps"]))["job"]["rows"]


def one(name: str, purpose: str, job: Job) -> dict[str, Any]:
    """A run as it goes into the record: without the first step, which warms up."""
    parts = (job.trainer, job.engine, f"{job.rows}rows", job.precision, f"beta{job.beta:g}")
    changes = [change for change in ("checkpointing", "completion_head") if getattr(job, change)]
    folder = RUNS / name / "runs" / "-".join((*parts, *changes, f"{job.seed}"))
    result = measure(job, folder)
    steps = [{key: round(value, 4) for key, value in step.items()} for step in result["steps"][1:]]
    seconds = sum(step["step"] for step in steps) / len(steps)
    kept = " (kept)" if result.get("kept") else ""
    above = result["memory"]["above_load"]
    print(f"{name} {purpose} {folder.name}: {seconds:.2f} s a step, {above:.0f} MiB above load{kept}", flush=True)
    private = ("model", "data", "commit")  # folders of this machine, and what is said once
    told = {key: value for key, value in dataclasses.asdict(job).items() if key not in private}
    return {"purpose": purpose, "job": told, "memory": result["memory"], "steps": steps}


def describe(workload: Workload, model: str, recording: Recording) -> dict[str, Any]:
    """What is trained on: lengths, and the operations that the measured steps need, as a mean over them."""
    from transformers import AutoConfig

    shape = Shape.of(AutoConfig.from_pretrained(model))
    groups = [
        Group(len(prompt), tuple(len(completion.token_ids) for completion in completions))
        for prompt, completions in recording.groups.items()
    ]
    size = workload.prompts_per_step
    measured = [groups[step * size : (step + 1) * size] for step in range(1, 1 + workload.steps)]
    trained = groups[size : (1 + workload.steps) * size]
    lengths = [length for group in trained for length in group.completions]
    prompts = [group.prompt for group in trained]

    def mean_flops(*, reference: bool) -> dict[str, float]:
        every = [step_flops(shape, groups, reference=reference) for groups in measured]
        return {phase: sum(step[phase] for step in every) / len(every) for phase in every[0]}

    return {
        "title": workload.title,
        "completion_length": {"mean": sum(lengths) / len(lengths), "max": max(lengths)},
        "prompt_length": {"mean": sum(prompts) / len(prompts), "max": max(prompts)},
        "flops": mean_flops(reference=False),
        "flops_with_reference": mean_flops(reference=True),
    }


def matmul_rates() -> dict[str, float]:
    """Operations a second by precision, in a process of its own as every run has."""
    program = (
        "import json, torch; from grpo_lightning.models.flops import matmul_rate\n"
        "device = 'cuda' if torch.cuda.is_available() else 'cpu'\n"
        "types = {'32-true': torch.float32, 'bf16-mixed': torch.bfloat16}\n"
        "print(json.dumps({name: matmul_rate(dtype, device=device) for name, dtype in types.items()}))"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(result.stdout)


if __name__ == "__main__":
    main()
