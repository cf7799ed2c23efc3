"""What a checkpoint does not hold and still depends on: the model under an adapter, its scale, the reference."""

from __future__ import annotations

from typing import Any

from grpo_lightning.errors import UserError
from grpo_lightning.models.adapters import TRAINED, LoRA
from grpo_lightning.models.policy import Policy


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
