"""Runs a sweep: named settings of the command line times seeds, one process each, begun again where it was stopped.

    runs = run_sweep(
        "group_size",
        {f"G = {g}": f"--rollout.group_size {g} --data.prompts_per_step {256 // g}" for g in (2, 4, 8)},
        options="--config configs/quickstart.yaml --config experiments/embedded.yaml",
        figures=("reward",),
    )

A process costs about 9 seconds of imports and setup (two cores of an AMD EPYC server), a tenth of a run of two minutes;
for that, a run is exactly the command in its record, and nothing of one run reaches the next.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from experiments.base_model import quickstart_base
from experiments.machine import commit, machine, versions

ROOT = Path(__file__).resolve().parents[1]
RUNS = Path("runs/experiments")
PROGRAM = (sys.executable, "-m", "grpo_lightning")
SHOWN_AS = "python -m grpo_lightning"
SEEDS = (0, 1, 2)
START = "{policy}"
"""In a setting: the folder that ``--model.policy`` names, which each seed has its own of."""
DIGITS = 4
"""Of a figure in the record."""


@dataclass(frozen=True)
class Run:
    """What a finished run left behind; the runs of a sweep together are its results.json."""

    setting: str
    seed: int
    command: str
    seconds: float
    """Of the whole command, start and evaluations included."""
    steps_per_rollout: int
    """Optimizer steps that one rollout is used for."""
    figures: dict[str, list[list[float]]]
    """Of each figure, pairs of optimizer step and value."""
    machine: str
    versions: dict[str, str]
    commit: str | None

    def by_rollout(self, figure: str) -> tuple[list[float], list[float]]:
        """Rollouts behind each value, and the mean of the values of a rollout's steps."""
        rollouts: dict[float, list[float]] = {}
        for step, value in self.figures.get(figure, []):
            rollouts.setdefault(-(-step // self.steps_per_rollout), []).append(value)
        return list(rollouts), [float(np.mean(values)) for values in rollouts.values()]

    def last(self, figure: str, *, points: int = 1) -> float | None:
        """Mean of the last values; None without any."""
        values = self.values(figure)
        return float(np.mean(values[-points:])) if values else None

    def mean(self, figure: str) -> float | None:
        """Over all steps of the run; None without any."""
        return self.last(figure, points=len(self.values(figure)))

    def values(self, figure: str) -> list[float]:
        """All of them, in the order of steps."""
        return [value for _, value in self.figures.get(figure, [])]

    def rollouts_to(self, figure: str, level: float, *, points: int = 5) -> float | None:
        """Rollouts until the mean of ``points`` in a row is at least ``level`` for the first time; None if never."""
        rollouts, values = self.by_rollout(figure)
        for end in range(points, len(values) + 1):
            if np.mean(values[end - points : end]) >= level:
                return rollouts[end - 1]
        return None


def run_sweep(
    name: str,
    settings: Mapping[str, str],
    *,
    options: str,
    figures: Sequence[str],
    seeds: Sequence[int] = SEEDS,
    policy: Callable[[int], Path] | None = quickstart_base,
    subcommand: str = "fit",
    program: Sequence[str] = PROGRAM,
) -> list[Run]:
    """Every setting with every seed, all settings of a seed first; then write results.json.

    A run that is finished, by the same command, is not run again; one that was interrupted begins afresh. Runs and what
    is known of them lie in ``runs/experiments/<name>/`` until all are done: removing that folder starts it all over.

    Args:
        name: of the sweep.
        settings: name of each setting and its command-line options, in which ``START`` may stand.
        options: what all runs share.
        figures: what to keep: columns of metrics.csv, or ``<stage>/<source>/<figure>`` from evaluations.jsonl.
        seeds: ``--seed_everything`` of the runs, from the start model on.
        policy: makes the model that a seed starts from, or finds it; None leaves that to ``options``.
        subcommand: of the command line.
        program: how the command line is called.
    """
    began, runs = time.perf_counter(), {}
    total = len(settings) * len(seeds)
    for seed in seeds:
        start = ["--model.policy", str(policy(seed).relative_to(ROOT))] if policy else []
        for setting, own in settings.items():
            run = RUNS / name / f"{_file_name(setting)}-seed{seed}"
            where = ["--seed_everything", str(seed), "--trainer.default_root_dir", str(run)]
            # The seed's own start model for other uses too, such as that of a critic.
            own_words = [word.replace(START, start[-1]) if start else word for word in shlex.split(own)]
            words = [subcommand, *shlex.split(options), *start, *where, *own_words]
            found = _finished(run, shlex.join([*shlex.split(SHOWN_AS), *words]))
            took = "kept" if found else ""
            found = found or _run(run, words, program, setting=setting, seed=seed, figures=figures)
            runs[setting, seed] = found
            took = took or f"{found.seconds:.0f} s"
            ends = ", ".join(f"{figure} {points[-1][1]:.3g}" for figure, points in found.figures.items())
            print(f"{name} {len(runs)}/{total}: {setting}, seed {seed}: {took}; {ends}", flush=True)
    ordered = [runs[setting, seed] for setting in settings for seed in seeds]
    results = ROOT / "experiments" / name / "results.json"
    write_results(results, ordered)
    print(f"{name}: {total} runs, {time.perf_counter() - began:.0f} s; {results}", flush=True)
    return ordered


def write_results(path: Path, runs: Sequence[Run]) -> None:
    """One line a run."""
    lines = ",\n".join(json.dumps(asdict(run), ensure_ascii=False) for run in runs)
    _write(path, f'{{"runs": [\n{lines}\n]}}\n')


def read_results(path: Path) -> list[Run]:
    """The runs of a sweep."""
    return [Run(**run) for run in json.loads(path.read_text("utf-8"))["runs"]]


def read_run(
    folder: Path, figures: Sequence[str], *, setting: str, seed: int, command: str = "", seconds: float = 0.0
) -> Run:
    """What a run's folder says, and what this machine and checkout are."""
    return Run(
        setting=setting,
        seed=seed,
        command=command,
        seconds=seconds,
        steps_per_rollout=_steps_per_rollout(folder),
        figures={figure: found for figure in figures if (found := read_figure(folder, figure))},
        machine=machine(),
        versions=versions(),
        commit=commit(ROOT),
    )


def _run(
    run: Path, words: list[str], program: Sequence[str], *, setting: str, seed: int, figures: Sequence[str]
) -> Run:
    folder, began = ROOT / run, time.perf_counter()
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    log = folder.with_suffix(".log")
    with log.open("wb") as output:
        done = subprocess.run([*program, *words], cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        end = "\n".join(log.read_text("utf-8", "replace").splitlines()[-5:])
        sys.exit(f"{setting}, seed {seed} ended with exit code {done.returncode} ({log}):\n{end}")
    seconds = round(time.perf_counter() - began, 1)
    command = shlex.join([*shlex.split(SHOWN_AS), *words])
    finished = read_run(folder, figures, setting=setting, seed=seed, command=command, seconds=seconds)
    _write(folder / "run.json", json.dumps(asdict(finished)) + "\n")
    return finished


def _finished(run: Path, command: str) -> Run | None:
    record = ROOT / run / "run.json"
    if not record.exists():
        return None
    found = Run(**json.loads(record.read_text("utf-8")))
    return found if found.command == command else None


def read_figure(folder: Path, figure: str) -> list[list[float]]:
    """Pairs of step and value, from metrics.csv or, for a figure that is not there, from evaluations.jsonl."""
    for rows in (_metrics(folder / "metrics.csv"), _evaluations(folder / "evaluations.jsonl")):
        found = [(int(row["step"]), float(row[figure])) for row in rows if row.get(figure) not in (None, "")]
        if found:
            return [[step, float(f"{value:.{DIGITS}g}")] for step, value in found]
    return []


def _metrics(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _evaluations(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [{"step": row["step"]} | {f"{row['stage']}/{row['source']}/{key}": row[key] for key in row} for row in rows]


def _steps_per_rollout(folder: Path) -> int:
    config = folder / "config.yaml"
    rollout = (yaml.safe_load(config.read_text("utf-8")).get("rollout") or {}) if config.exists() else {}
    return int(rollout.get("passes", 1)) * int(rollout.get("updates_per_rollout", 1))


def _file_name(setting: str) -> str:
    return re.sub(r"[^\w.]+", "-", setting).strip("-")


def _write(path: Path, text: str) -> None:
    """All of it or nothing, also if the program is killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)
