"""The trained policy as Hugging Face folders at the end of a run."""

from __future__ import annotations

import logging
from pathlib import Path

import lightning as L
import torch

from grpo_lightning.models.export import export_adapter, export_policy
from grpo_lightning.models.loading import DType
from grpo_lightning.policy_module import PolicyModule
from grpo_lightning.records import read_records

log = logging.getLogger(__name__)
ADAPTER_FOLDER = "adapter"


class ExportCallback(L.Callback):
    """Writes weights, tokenizer, chat template, generation config and a model card when training ends.

    Of a policy with an adapter: the whole model with the adapter merged, and in ``adapter/`` the adapter alone.

    Args:
        folder: inside the run folder; null exports nothing.
        dtype: of the written weights; null keeps that in which they were trained.
    """

    def __init__(self, *, folder: str | None = "hf", dtype: DType | None = None) -> None:
        self.folder = folder
        self.dtype = dtype

    def on_fit_end(self, trainer: L.Trainer, pl_module: PolicyModule) -> None:
        if self.folder is None:
            return
        assert pl_module.policy is not None
        root = Path(trainer.default_root_dir)
        if pl_module.adapter is not None:
            export_adapter(pl_module.policy, root / ADAPTER_FOLDER)
        export_policy(
            pl_module.policy,
            pl_module.tokenizer,
            root / self.folder,
            eos_token_ids=pl_module.eos_token_ids,
            dtype=getattr(torch, self.dtype) if self.dtype else None,
            card=_card(trainer, pl_module) if trainer.is_global_zero else "",
        )
        log.info("trained policy: %s; figures: %s", root / self.folder, root / "metrics.csv")


def _card(trainer: L.Trainer, pl_module: PolicyModule) -> str:
    """Model card: where it came from, how it was trained, what it reached."""
    figures = {k: float(v) for k, v in sorted(trainer.callback_metrics.items()) if "/" not in k or k.startswith("val/")}
    rows = read_records(Path(trainer.default_root_dir) / "evaluations.jsonl")
    table = "\n".join(
        f"| {row['step']} | {row['source']} | {row['problems']:.0f} | {100 * row['accuracy']:.1f}% "
        f"| {row['mean_length']:.1f} |"
        for row in rows
        if row["command"] == "fit" and row["problems"]  # without, there is no accuracy
    )
    return (
        "---\nlibrary_name: transformers\ntags: [grpo, grpo_lightning]\n"
        f"base_model: {pl_module.policy_path}\n---\n\n"
        f"# {type(pl_module).__name__} policy\n\n"
        f"Trained from `{pl_module.policy_path}` for {trainer.global_step} optimizer steps with grpo_lightning; the "
        "full configuration is `config.yaml` in the run folder.\n\n"
        "| step | evaluated on | problems | accuracy | mean length (tokens) |\n|---|---|---|---|---|\n"
        f"{table}\n\n"
        "Last training figures:\n\n" + "\n".join(f"- {name}: {value:.6g}" for name, value in figures.items()) + "\n"
    )
