"""Three seeds of the quickstart as one record: results.json and learning_curve.png beside this file.

for seed in 0 1 2; do python experiments/quickstart/run.py --seed $seed; done
python experiments/quickstart/collect.py
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))  # for what the experiments share

from machine import processor, versions
from run import ROOT, draw_curves, run_folder

SEEDS = (0, 1, 2)


def main() -> None:
    here = Path(__file__).resolve().parent
    runs = [run_folder(seed) / "grpo" for seed in SEEDS]
    record = {
        "command": "python experiments/quickstart/run.py --seed {0,1,2}",
        "configs": ["configs/quickstart_base.yaml", "configs/quickstart.yaml"],
        "machine": f"{os.cpu_count()} CPU cores ({processor()}), no GPU",
        "versions": versions(),
        "seeds": [json.loads((run / "results.json").read_text("utf-8")) for run in runs],
    }
    (here / "results.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    draw_curves(runs, here / "learning_curve.png", labels=[f"seed {seed}" for seed in SEEDS])
    print(f"{here / 'results.json'}, {here / 'learning_curve.png'} (runs in {ROOT / 'runs'})")


if __name__ == "__main__":
    main()
