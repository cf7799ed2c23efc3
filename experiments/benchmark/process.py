"""A measured run in a process of its own: python -m experiments.benchmark.process JOB.json FIGURES.json FOLDER"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from experiments.base_model import ROOT
from experiments.benchmark.job import TRL, Job


def measure(job: Job, folder: Path) -> dict[str, Any]:
    """Run ``job`` in a new process and return its figures; stop with the end of its output if it fails.

    A run that was finished is kept in ``folder`` and not run again while job and files stay the same.
    """
    folder.mkdir(parents=True, exist_ok=True)
    job_file, figures = folder / "job.json", folder / "figures.json"
    if figures.exists() and job_file.exists() and Job.read(job_file) == job:
        return {**json.loads(figures.read_text("utf-8")), "kept": True}
    figures.unlink(missing_ok=True)
    job.write(job_file)
    command = [sys.executable, "-m", "experiments.benchmark.process", *map(str, (job_file, figures, folder))]
    with (folder / "output.txt").open("w", encoding="utf-8") as output:
        code = subprocess.run(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
    if not figures.exists():
        tail = (folder / "output.txt").read_text("utf-8")[-3000:]
        sys.exit(f"{tail}\n{folder}: the run ended with exit code {code}")
    return json.loads(figures.read_text("utf-8"))


def main() -> None:
    job_file, figures, folder = map(Path, sys.argv[1:])
    if Job.read(job_file).trainer == TRL:
        from experiments.benchmark import theirs as side
    else:
        from experiments.benchmark import ours as side
    side.run(job_file.resolve(), figures.resolve(), folder.resolve())


if __name__ == "__main__":
    main()
