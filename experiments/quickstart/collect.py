"""Three seeds of the quickstart (the missing ones run first) as results.json and learning_curve.png beside this file.

python -m experiments.quickstart.collect
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from experiments.base_model import ROOT, run_folder
from experiments.machine import machine, versions
from experiments.plots import draw
from experiments.quickstart.run import PANELS, curves

HERE = Path(__file__).resolve().parent
SEEDS = (0, 1, 2)


def main() -> None:
    runs = {seed: run_folder(seed) / "grpo" for seed in SEEDS}
    for seed, run in runs.items():
        if not (run / "results.json").exists():
            subprocess.run(
                [sys.executable, "-m", "experiments.quickstart.run", "--seed", str(seed)], cwd=ROOT, check=True
            )
    record = {
        "command": "python -m experiments.quickstart.run --seed {0,1,2}",
        "configs": ["configs/quickstart_base.yaml", "configs/quickstart.yaml"],
        "machine": machine(),
        "versions": versions(),
        "seeds": [json.loads((run / "results.json").read_text("utf-8")) for run in runs.values()],
    }
    (HERE / "results.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    draw([curves(run, seed) for seed, run in runs.items()], PANELS, HERE / "learning_curve.png")
    print(f"{HERE}: results.json, learning_curve.png (runs in {runs[SEEDS[0]].parents[1]})")


if __name__ == "__main__":
    main()
