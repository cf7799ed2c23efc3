"""What a checkpoint does not hold and still depends on: the model under an adapter, its scale, the reference."""

from __future__ import annotations

from typing import Any

import torch

from grpo_lightning.errors import UserError
from grpo_lightning.models.adapters import TRAINED, LoRA
from grpo_lightning.models.policy import Policy

OF_REFERENCE = "reference."
"""What the names of a module's reference tensors begin with; checkpoints hold them only if training moves them."""


def attach_adapter(policy: Policy, adapter: LoRA, *, with_reference: bool) -> dict[str, Any]:
    """Put the adapter on the policy; the origin of what is then trained."""
    origin: dict[str, Any] = {"model under the adapter": policy.fingerprint()}
    adapter.attach(policy.model, with_reference=with_reference)
    config = policy.model.peft_config[TRAINED]
    origin |= {"lora_alpha": float(config.lora_alpha), "use_rslora": bool(config.use_rslora)}
    if with_reference:
        origin["reference"] = policy.fingerprint() if adapter.path else "the policy without its adapter"
    return origin


def require_same_origin(saved: dict[str, Any], ours: dict[str, Any]) -> None:
    """Refuse to go on where the checkpoint's weights would silently make another policy, or be pulled elsewhere.

    Args:
        saved: origin in the checkpoint; empty if it has none.
        ours: of the run that is to go on.

    Raises:
        UserError: at the first difference.
    """
    for what, value in ours.items():
        if saved.get(what, value) != value:
            raise UserError(
                f"--ckpt_path: the {what} is {saved[what]} in the checkpoint and {value} in this run; go on with the "
                "--model.policy, --model.reference and --model.adapter that it was trained with"
            )


def require_same_tensors(saved: dict[str, torch.Size], ours: dict[str, torch.Size], *, model: str) -> None:
    """Refuse a checkpoint that holds something else than this run trains.

    Args:
        saved: shapes of its tensors, by name.
        ours: of what this run trains.
        model: of this run, in words.

    Raises:
        UserError: if names or shapes differ.
    """
    moved, moves = (any(name.startswith(OF_REFERENCE) for name in names) for names in (saved, ours))
    if moved != moves:
        theirs, own, cure = ("moves", "does not", "add") if moved else ("does not move", "does", "leave out")
        raise UserError(
            f"--ckpt_path: the checkpoint's reference {theirs} with the policy, and this run's {own}; {cure} "
            "grpo_lightning.callbacks.ReferenceSync in --trainer.callbacks"
        )
    faults = {
        "missing": [name for name in ours if name not in saved],
        "unexpected": [name for name in saved if name not in ours],
        "of another shape": [name for name, shape in saved.items() if name in ours and shape != ours[name]],
    }
    if any(faults.values()):
        raise UserError(
            f"--ckpt_path: the checkpoint is of another model than {model} "
            f"({'; '.join(f'{kind}: {names[0]}, ...' for kind, names in faults.items() if names)})"
        )
