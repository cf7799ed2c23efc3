"""Runs with the callbacks that steer training, on one process and on two ranks.

torchrun --nproc-per-node 2 -m tests.integration.steering POLICY FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from grpo_lightning.processes import leave
from tests.integration.resuming import HERE, SHARDED, command, resumed, three_epochs

CALLBACKS = "grpo_lightning.callbacks"
EVERY_ROLLOUT = {
    "class_path": f"{CALLBACKS}.checkpoint.RunCheckpoint",
    "init_args": {"every_n_rollouts": 1, "keep_all": True},
}
SYNC = {"class_path": f"{CALLBACKS}.ReferenceSync", "init_args": {"alpha": 0.6, "every_n_steps": 4}}
TARGET_KL, TARGET_ENTROPY = 0.006, 3.8812
STEERING = [
    {"class_path": f"{CALLBACKS}.AdaptiveKL", "init_args": {"target": TARGET_KL, "rate": 0.5}},
    {"class_path": f"{CALLBACKS}.AdaptiveEntropy", "init_args": {"target": TARGET_ENTROPY, "delta": 0.01}},
    {"class_path": f"{CALLBACKS}.CompletionLengthSchedule", "init_args": {"start": 3, "steps": 10}},
    SYNC,
]


def steered(policy: Path | str, folder: Path | str, *callbacks: Any, **changes: Any) -> dict[str, Any]:
    """Six rollouts of two optimizer steps, with a KL term and these callbacks."""
    objective = {"class_path": "grpo_lightning.objectives.ClippedObjective", "init_args": {"beta": 0.1}}
    arguments: dict[str, Any] = {
        "model__init_args__objective": objective,
        "rollout__passes": 2,
        "trainer__max_epochs": 2,
        "trainer__limit_val_batches": 0,
        "trainer__callbacks": [EVERY_ROLLOUT, {"class_path": f"{HERE}.Snapshot"}, *callbacks],
    }
    return three_epochs(policy, folder, **(arguments | changes))


ON_TWO_RANKS: dict[str, Any] = {"fsdp2": "fsdp2", "sharded": SHARDED}


def on_two_ranks(policy: str, root: Path) -> None:
    """Half of the run, and a resume from a reference that has moved, out of one file and out of shards."""
    for name, strategy in ON_TWO_RANKS.items():
        changes = {"trainer__strategy": strategy, "trainer__devices": 2, "trainer__max_epochs": 1}
        config = steered(policy, root / name, *STEERING, **changes)
        command(config)
        resumed(config, root / name, 4, killed=True)


if __name__ == "__main__":
    on_two_ranks(sys.argv[1], Path(sys.argv[2]))
    leave(0)
