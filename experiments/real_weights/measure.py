"""What training did to the weights, and whether the exported folder holds exactly those."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

TEXTS = 8
"""Completions of the last rollout on which the first and the last weights are compared."""


@torch.inference_mode()
def compare_weights(policy: str, run: Path, *, steps: int) -> dict[str, Any]:
    """Base, checkpoint and export side by side, all in float32.

    Args:
        policy: hub id or folder that the run began with.
        run: the run's folder.
        steps: optimizer steps that it took.
    """
    base, export = _load(policy), _load(str(run / "hf"))
    tokenizer = AutoTokenizer.from_pretrained(run / "hf")
    texts = pq.read_table(run / "samples" / f"rollout_{steps:06d}.parquet").slice(0, TEXTS).to_pylist()
    drift = torch.cat([_logprobs(export, tokenizer, text) - _logprobs(base, tokenizer, text) for text in texts])
    changes = {name: (b - a, a) for (name, a), b in zip(_weights(base).items(), _weights(export).values(), strict=True)}
    entries = sum(change.numel() for change, _ in changes.values())
    moved = sum(int((change != 0).sum()) for change, _ in changes.values())
    seen = sum(int(((a + change).bfloat16() != a.bfloat16()).sum()) for change, a in changes.values())
    stored = torch.load(run / "checkpoints" / "last.ckpt", map_location="cpu", mmap=True, weights_only=True)
    kept = {name.removeprefix("policy.model."): tensor for name, tensor in stored["state_dict"].items()}
    ids = tokenizer(texts[0]["prompt"], return_tensors="pt").input_ids
    exported, logits = _weights(export), export(ids).logits
    base.load_state_dict(kept)
    return {
        "tensors": len(changes),
        "tensors_moved": sum(bool((change != 0).any()) for change, _ in changes.values()),
        "largest_change": max(float(change.abs().max()) for change, _ in changes.values()),
        "entries": entries,
        "share_moved": moved / entries,
        "share_moved_in_bfloat16": seen / entries,
        "logprob_drift_mean": float(drift.abs().mean()),
        "export_dtype": str(export.dtype).removeprefix("torch."),
        "export_minus_checkpoint": max(float((exported[name] - kept[name]).abs().max()) for name in exported),
        "export_minus_checkpoint_logits": float((base(ids).logits - logits).abs().max()),
    }


def _load(name_or_path: str) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(name_or_path, dtype=torch.float32).eval()


def _weights(model: PreTrainedModel) -> dict[str, Tensor]:
    """By name; a tied tensor once."""
    return dict(model.named_parameters())


def _logprobs(model: PreTrainedModel, tokenizer: Any, text: dict[str, Any]) -> Tensor:
    """Log-probabilities of a completion's tokens, ``[T]``."""
    prompt = tokenizer(text["prompt"], return_tensors="pt").input_ids
    completion = tokenizer(text["completion"], return_tensors="pt", add_special_tokens=False).input_ids
    logits = model(torch.cat([prompt, completion], dim=1), logits_to_keep=completion.shape[1] + 1).logits[:, :-1]
    return logits.log_softmax(-1).gather(-1, completion[..., None]).flatten()
