"""A run with a checkpoint at every rollout, and a resume from each of them into a copy of its folder.

torchrun --nproc-per-node 2 -m tests.integration.resuming POLICY FOLDER
"""

from __future__ import annotations

import copy
import shutil
import sys
from pathlib import Path
from typing import Any

import lightning as L
import torch
from safetensors.torch import load_file

from grpo_lightning import ranks
from grpo_lightning.__main__ import main
from grpo_lightning.processes import leave
from grpo_lightning.strategies import METADATA
from tests.integration.command_line import grpo, own_process_state, records, totals, untimed, written

HERE = "tests.integration.resuming"
SNAPSHOTS = "snapshots"
DRAWS = "tests.integration.drawing_rewards.noisy_digits"


class Snapshot(L.Callback):
    """Keeps what the run folder held when a checkpoint was written, which is what a kill right then would leave."""

    def on_save_checkpoint(self, trainer: L.Trainer, *args: Any) -> None:
        if not trainer.is_global_zero:
            return
        root = Path(trainer.default_root_dir)
        folder = root / SNAPSHOTS / f"step{trainer.global_step}"
        folder.mkdir(parents=True)
        for path in [*root.glob("metrics.csv"), *root.glob("evaluations.jsonl"), *root.glob("samples/*")]:
            (folder / path.relative_to(root)).parent.mkdir(exist_ok=True)
            shutil.copyfile(path, folder / path.relative_to(root))


def three_epochs(policy: Path | str, folder: Path | str, **changes: Any) -> dict[str, Any]:
    """Three rollouts an epoch, with two of 14 prompts left out of each; every rollout is recorded."""
    own_checkpoints = {"class_path": "grpo_lightning.callbacks.checkpoint.RunCheckpoint"}
    own_checkpoints["init_args"] = {"every_n_rollouts": 1, "keep_all": True}  # type: ignore[assignment]
    trainer = {
        "max_steps": -1,
        "max_epochs": 3,
        "limit_val_batches": 1.0,
        "callbacks": [own_checkpoints, {"class_path": f"{HERE}.Snapshot"}],
    }
    arguments = {"data__source": totals("train", 14), "samples__every_n_rollouts": 1}
    arguments |= {f"trainer__{name}": value for name, value in trainer.items()}
    return grpo(policy, folder, **(arguments | changes))


def supervised(policy: Path | str, folder: Path | str, **changes: Any) -> dict[str, Any]:
    """As ``three_epochs``, on worked solutions, with an adapter if ``changes`` name one."""
    config = three_epochs(policy, folder, **changes)
    arguments = {"policy": str(policy), "lr": 3e-3, "target_column": "solution"}
    config["model"]["class_path"] = "grpo_lightning.SFTModule"
    config["model"]["init_args"] |= arguments | {"micro_batch_tokens": 64}
    del config["rollout"]["rewards"]
    return config


def ppo(policy: Path | str, folder: Path | str, **changes: Any) -> dict[str, Any]:
    """One epoch, two steps a rollout, with a value head on the trunk, or with the critic that ``changes`` name."""
    arguments = {"rollout__updates_per_rollout": 2, "model__init_args__lr_scheduler_type": "cosine"}
    config = three_epochs(policy, folder, **arguments | {"trainer__max_epochs": 1} | changes)
    config["model"]["class_path"] = "grpo_lightning.PPOModule"
    config["model"]["init_args"]["critic_lr"] = 1e-2
    return config


def command(config: dict[str, Any], *arguments: str) -> None:
    """``fit`` in this process."""
    file = Path(config["trainer"]["default_root_dir"]).with_suffix(".yaml")
    if ranks.rank() == 0:
        written(config, file)
    ranks.gather_objects([0])  # the others wait for the file
    with own_process_state():
        main(["fit", "--config", str(file), *arguments])


def checkpoint(folder: Path, step: int) -> Path:
    return folder / "checkpoints" / f"step{step}.ckpt"


def steps(folder: Path) -> list[int]:
    """Where there are checkpoints."""
    return sorted(int(path.stem.removeprefix("step")) for path in folder.glob("checkpoints/step*.ckpt"))


def copy_of(whole: Path, folder: Path, step: int, *, killed: bool) -> Path:
    """The run's folder as it was left, or as a kill would have left it that came with the checkpoint of a step.

    What the resumed run must write again is not there: later checkpoints and the export.
    """
    if ranks.rank() == 0:
        shutil.copytree(whole, folder, symlinks=True, ignore=shutil.ignore_patterns(SNAPSHOTS, "hf", "last.ckpt"))
        for later in steps(whole):
            if later > step and checkpoint(folder, later).is_dir():
                shutil.rmtree(checkpoint(folder, later))
            elif later > step:
                checkpoint(folder, later).unlink()
        (folder / "checkpoints" / "last.ckpt").symlink_to(f"step{step}.ckpt")
        if killed:
            for name in ("metrics.csv", "evaluations.jsonl"):
                (folder / name).unlink(missing_ok=True)
            shutil.rmtree(folder / "samples")
            shutil.copytree(whole / SNAPSHOTS / f"step{step}", folder, dirs_exist_ok=True)
    ranks.gather_objects([0])
    return folder


def resumed(config: dict[str, Any], whole: Path, step: int, *arguments: str, killed: bool) -> Path:
    """A copy of the run ``whole``, gone on with from the checkpoint of a step."""
    folder = copy_of(whole, whole.parent / f"{whole.name}-{step}", step, killed=killed)
    config = {**config, "trainer": {**config["trainer"], "default_root_dir": str(folder)}}
    named = "last" if killed else str(checkpoint(folder, step))
    command(config, "--ckpt_path", named, *arguments)
    return folder


def differences(one: Path, other: Path) -> list[str]:
    """In what the runs in two folders differ; nothing but times, and the paths of checkpoints, may."""
    found = []
    if untimed(one) != untimed(other):
        found.append("metrics.csv")
    if _evaluations(one) != _evaluations(other):
        found.append("evaluations.jsonl")
    found += [f"samples/{name}" for name in _different(_samples(one), _samples(other))]
    found += [f"hf/{name}" for name in _different(*(load_file(f / "hf" / "model.safetensors") for f in (one, other)))]
    last = max(steps(one))
    states = [_state(checkpoint(folder, last)) for folder in (one, other)]
    return found + [f"checkpoint/{name}" for name in _different(*states)]


def _evaluations(folder: Path) -> list[dict[str, Any]]:
    file = folder / "evaluations.jsonl"
    lines = records(file) if file.exists() else []
    return [{name: value for name, value in line.items() if name != "checkpoint"} for line in lines]


def _samples(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "samples").iterdir()}


def _state(file: Path) -> dict[str, Any]:
    """What the rest of the run depends on, by dotted name; of a sharded checkpoint what is not in shards."""
    content = torch.load(file / METADATA if file.is_dir() else file, weights_only=True)
    tensors = () if file.is_dir() else ("state_dict", "optimizer_states")
    kept = {name: content[name] for name in (*tensors, "lr_schedulers", "global_step", "epoch")}
    kept["rollouts"] = content["callbacks"].get("RolloutCallback")
    kept["loader"] = content["loops"]["fit_loop"]["state_dict"]["combined_loader"]
    # torchdata's own count of batches begins anew where a resumed run begins an epoch; nothing is read off it.
    return {name: value for name, value in _leaves(kept) if not name.endswith("_yielded")}


def _leaves(value: Any, name: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [leaf for key, inner in value.items() for leaf in _leaves(inner, f"{name}.{key}")]
    if isinstance(value, list | tuple):
        return [leaf for key, inner in enumerate(value) for leaf in _leaves(inner, f"{name}.{key}")]
    return [(name, value)]


def _different(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Names under which two tables do not hold the same, to the last bit."""

    def same(name: str) -> bool:
        if name not in one or name not in other:
            return False
        a, b = one[name], other[name]
        return torch.equal(a, b) if isinstance(a, torch.Tensor) else bool(a == b)

    return [name for name in sorted(one.keys() | other.keys()) if not same(name)]


SHARDED = {
    "class_path": "grpo_lightning.strategies.FSDP2Strategy",
    "init_args": {"save_distributed_checkpoint": True},
}
ON_TWO_RANKS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "ddp": ("ddp", tuple(range(2, 19, 2))),
    "fsdp2": ("fsdp2", (4, 6)),
    "sharded": (SHARDED, (6, 8)),
}
"""Strategies, and the steps that are resumed from: all of them under DDP, some in shards, an epoch's end among them."""
CHANGED: dict[str, dict[str, Any]] = {
    "rate": {"lr": 1e-5},
    "optimizer": {"lr": 1e-2, "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"momentum": 0.9}}},
}
"""What the last rollout is trained with instead, resumed in shards."""
SUPERVISED_ON_TWO_RANKS: dict[str, tuple[str, tuple[int, ...]]] = {
    "supervised ddp": ("ddp", (3,)),
    "supervised fsdp2": ("fsdp2", (5,)),
}


PPO_ON_TWO_RANKS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "PPO fsdp2": ("fsdp2", (2,)),
    "PPO sharded": (SHARDED, (4,)),
}


def on_two_ranks(policy: str, root: Path) -> None:
    """Under each strategy a run of two steps a rollout, some of supervised steps and with a critic; and resumes."""
    for name, (strategy, resumes) in ON_TWO_RANKS.items():
        whole = root / name
        config = three_epochs(
            policy,
            whole,
            rollout__rewards=[DRAWS],
            rollout__updates_per_rollout=2,
            trainer__strategy=strategy,
            trainer__devices=2,
            trainer__val_check_interval=2,
        )
        command(config)
        for step in resumes:
            resumed(config, whole, step, killed=step != 10)
        for change, arguments in CHANGED.items() if name != "ddp" else ():
            folder = copy_of(whole, root / f"{name}-{change}", 16, killed=False)
            changed = copy.deepcopy(config)
            changed["model"]["init_args"] |= arguments
            changed["trainer"]["default_root_dir"] = str(folder)
            changed["rollout"]["rewards"] = ["tests.integration.reward_functions.share_of_digits"]  # starts faster
            command(changed, "--ckpt_path", str(checkpoint(folder, 16)))
    for name, (strategy, resumes) in SUPERVISED_ON_TWO_RANKS.items():
        config = supervised(policy, root / name, trainer__strategy=strategy, trainer__devices=2)
        command(config)
        for step in resumes:
            resumed(config, root / name, step, killed=True)
    for name, (strategy, resumes) in PPO_ON_TWO_RANKS.items():
        critic = {"model__init_args__critic": policy} if strategy == "fsdp2" else {}
        config = ppo(policy, root / name, trainer__strategy=strategy, trainer__devices=2, **critic)
        command(config)
        for step in resumes:
            resumed(config, root / name, step, killed=True)


if __name__ == "__main__":
    on_two_ranks(sys.argv[1], Path(sys.argv[2]))
    leave(0)
