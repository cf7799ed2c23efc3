"""Replays the recorded rollout in every combination under one strategy, and trains on targets; rank 0 writes norms,
weights and figures.

torchrun --nproc-per-node 2 -m tests.integration.replay_on_ranks STRATEGY POLICY FOLDER [ACCELERATOR]
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.trainer.connectors.accelerator_connector import _AcceleratorConnector

from grpo_lightning import ranks
from grpo_lightning.models import LoRA
from grpo_lightning.processes import leave
from tests.integration.recorded_rollout import RecordedPPO, by_tokens, replay
from tests.integration.supervised_training import train

LR, BOUND = 0.5, 0.05
PPO = {"updates": 2, "beta": 0.0, "kind": RecordedPPO}

COMBINATIONS: dict[str, dict[str, Any]] = {
    f"windows {updates}, beta {beta}{', LoRA' if lora else ''}": {"updates": updates, "beta": beta, "lora": lora}
    for updates, beta, lora in itertools.product((1, 2), (0.0, 0.04), (False, True))
} | {
    "checkpointing": {"updates": 2, "beta": 0.04, "gradient_checkpointing": True},
    "checkpointing, LoRA": {"updates": 2, "beta": 0.04, "lora": True, "gradient_checkpointing": True},
    "bf16, checkpointing": {"updates": 2, "beta": 0.04, "gradient_checkpointing": True, "precision": "bf16-mixed"},
    "padding": {"updates": 2, "beta": 0.04, "packing": False},
    "padding, LoRA": {"updates": 2, "beta": 0.04, "packing": False, "lora": True},
    # The first forward is the reference's: FSDP2 settles its dtypes in it.
    "bf16, on policy": {"updates": 1, "passes": 1, "beta": 0.04, "precision": "bf16-mixed"},
    "bf16, LoRA, on policy": {"updates": 1, "passes": 1, "beta": 0.04, "precision": "bf16-mixed", "lora": True},
    "bf16": {"updates": 2, "beta": 0.04, "precision": "bf16-mixed"},
    "bf16, LoRA": {"updates": 2, "beta": 0.04, "precision": "bf16-mixed", "lora": True},
    "PPO, value head": PPO,
    "PPO, value head, LoRA": PPO | {"lora": True},
    "PPO, critic": PPO | {"critic": True, "critic_lr": 0.1},
    "PPO, value head, checkpointing": PPO | {"gradient_checkpointing": True},
    "PPO, value head, bf16": PPO | {"precision": "bf16-mixed"},
}
"""Two passes each, unless one says otherwise; checkpointing, padding and bf16 are compared with
"windows 2, beta 0.04", or with what they are without."""

SUPERVISED: dict[str, dict[str, Any]] = {
    "supervised": {},
    "supervised, padding": {"packing": False},
    "supervised, LoRA": {"lora": True},
}
"""Runs on targets."""


def replay_all(strategy: str, policy: str, *, devices: int, accelerator: str = "cpu") -> dict[str, Any]:
    """Figures and trained weights of every optimizer step, by combination."""
    results = {}
    for name, combination in (COMBINATIONS | SUPERVISED).items():
        options = {"lora": False, "precision": "32-true"} | combination
        lora, precision = options.pop("lora"), options.pop("precision")
        if strategy == "fsdp" and (lora or "kind" in options):
            continue  # refused
        if "critic" in options:
            options["critic"] = policy
        trainer = {"strategy": strategy, "accelerator": accelerator, "devices": devices, "precision": precision}
        options |= {
            "adapter": LoRA(r=4, lora_alpha=8) if lora else None,
            # Plain SGD shows a wrong gradient in the weights; Adam's normalization would hide a wrong scale of it.
            "optimizer": lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9),
            "lr": LR,
            "max_grad_norm": BOUND,
            "trainer_options": trainer,
        }
        torch.manual_seed(0)  # of the adapter's random half, as seed_everything does for a run
        with tempfile.TemporaryDirectory() as folder:
            if name in SUPERVISED:
                module = train(policy, Path(folder), **options)
                results[name] = {"held out": module.held_out}
            else:
                module, _, _ = replay(policy, Path(folder), split=by_tokens(60), **{"passes": 2} | options)
                results[name] = {}
        results[name] |= {"steps": module.steps, "weights": module.weights}
    return results


def main() -> None:
    strategy, policy, folder, accelerator = [*sys.argv[1:], "cpu"][:4]
    if (strategy, accelerator) == ("fsdp", "cpu"):
        # Lightning refuses FSDP1 there, but torch can do what is replayed here.
        _AcceleratorConnector._check_strategy_and_fallback = lambda self: None  # type: ignore[method-assign]
    results = replay_all(strategy, policy, devices=2, accelerator=accelerator)
    if ranks.rank() == 0:
        torch.save(results, Path(folder) / f"{strategy}.pt")


if __name__ == "__main__":
    main()
    leave(0)
