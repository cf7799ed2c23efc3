"""The trained policy as a Hugging Face folder that transformers and vLLM load."""

from __future__ import annotations

import shutil
from pathlib import Path

from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase


def export_policy(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    *,
    eos_token_ids: tuple[int, ...],
    state_dict: dict[str, Tensor] | None = None,
    card: str = "",
) -> None:
    """Write weights, tokenizer, chat template, generation config and model card.

    Everything is written beside ``folder`` first and moved there when complete: an interrupted export leaves the older
    folder usable.

    Args:
        model: the policy.
        tokenizer: its tokenizer.
        folder: to be (re)written.
        eos_token_ids: put into the generation config.
        state_dict: full tensors under the model's own names, where the model's own are shards.
        card: text of README.md.
    """
    draft = folder.with_name(folder.name + ".partial")
    shutil.rmtree(draft, ignore_errors=True)
    model.save_pretrained(draft, state_dict=state_dict)
    tokenizer.save_pretrained(draft)
    # Only what a user of the model needs to stop in the right place: how to sample is the user's choice.
    GenerationConfig(
        eos_token_id=list(eos_token_ids), pad_token_id=tokenizer.pad_token_id, bos_token_id=tokenizer.bos_token_id
    ).save_pretrained(draft)
    (draft / "README.md").write_text(card, encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    draft.rename(folder)
