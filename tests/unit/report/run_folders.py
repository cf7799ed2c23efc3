"""Run folders as a run leaves them, or as it is writing them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from grpo_lightning.callbacks.samples import COLUMNS
from grpo_lightning.records import write_table

CONFIG = """seed_everything: 0
model:
  class_path: grpo_lightning.GRPOModule
  init_args: {policy: some/model, lr: 3.0e-05}
rollout:
  rewards: [a.right, b.short]
data:
  eval_sources:
  - {class_path: x.Y, init_args: {size: 3}}
"""


def run_folder(folder: Path, *, steps: int = 4, completions: list[str] | None = None, config: str = CONFIG) -> Path:
    """``steps`` rollouts of one step each, the first and the last of them recorded, with evaluations before and after.

    Args:
        folder: to make.
        steps: optimizer steps.
        completions: of each recorded rollout, four to a group.
        config: text of config.yaml.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(config, "utf-8")
    lines = ["step,val/accuracy,reward,num_tokens,step_time,learning_rate,rewards/right/mean", "0,0.25,,,,,"]
    lines += [f"{s},,{s / 10},{100 * s},1800.0,1e-06,{s / 20}" for s in range(1, steps + 1)]
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n", "utf-8")
    evaluation = {"command": "fit", "stage": "val", "source": "held_out", "mean_length": 5.0, "problems": 40.0}
    before = evaluation | {"step": 0, "accuracy": 0.25, "accuracy_interval": [0.14, 0.4]}
    after = evaluation | {"step": steps, "accuracy": 0.5, "accuracy_interval": [0.35, 0.65], "mean_length": 7.5}
    test = evaluation | {"command": "test", "policy": "run/hf", "step": steps, "accuracy": 0.75}
    content = "".join(json.dumps(line) + "\n" for line in (before, after, test))
    (folder / "evaluations.jsonl").write_text(content, "utf-8")
    for rollout in sorted({1, steps}):
        write_samples(folder, rollout, completions or [f"#### {i}" for i in range(8)])
    return folder


def write_samples(folder: Path, rollout: int, completions: list[str], **extras: Any) -> Path:
    """A table of samples, four completions to a group; their rewards are 1, 0, 1, 0, ..."""
    rows = [
        {
            "rollout": rollout, "step": rollout, "group": i // 4, "source": "train", "row": 7 + i // 4,
            "prompt": f"question {i // 4}", "completion": text, "answer": "4", "extracted": None,
            "reward": 1.0 - i % 2, "advantage": 0.5 - i % 2, "finish_reason": ("stop", "length")[i % 2],
            "prompt_tokens": 3, "completion_tokens": len(text), "rewards/right": 1.0 - i % 2, **extras,
        }
        for i, text in enumerate(completions)
    ]  # fmt: skip
    path = folder / "samples" / f"rollout_{rollout:06d}.parquet"
    write_table(path, rows, types=COLUMNS)
    return path
