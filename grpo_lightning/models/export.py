"""The trained policy as a Hugging Face folder that transformers and vLLM load."""

from __future__ import annotations

import shutil
from pathlib import Path

from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from grpo_lightning.engines.skeleton import tied_aliases


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

    Everything is written to ``<folder>.partial`` and moved to ``folder`` when complete; the older folder stands as
    ``<folder>.previous`` until then. However an export is interrupted, one complete folder is left.

    Args:
        model: the policy.
        tokenizer: its tokenizer.
        folder: to be (re)written.
        eos_token_ids: put into the generation config.
        state_dict: full tensors under the model's own names, where the model's own are shards; a second name of a tied
            tensor is left out.
        card: text of README.md.
    """
    draft, previous = folder.with_name(folder.name + ".partial"), folder.with_name(folder.name + ".previous")
    shutil.rmtree(draft, ignore_errors=True)
    if state_dict is not None:
        aliases = tied_aliases(model)
        state_dict = {name: tensor for name, tensor in state_dict.items() if name not in aliases}
    own = model.generation_config
    # Only what a user of the model needs to stop in the right place: how to sample is the user's choice. (And some
    # published models come with a generation config that transformers refuses to save.)
    model.generation_config = GenerationConfig(
        eos_token_id=list(eos_token_ids), pad_token_id=tokenizer.pad_token_id, bos_token_id=tokenizer.bos_token_id
    )
    try:
        model.save_pretrained(draft, state_dict=state_dict)
    finally:
        model.generation_config = own
    tokenizer.save_pretrained(draft)
    (draft / "README.md").write_text(card, encoding="utf-8")
    if folder.exists():
        # Two renames: deleting the older folder takes long enough to be interrupted half-way.
        shutil.rmtree(previous, ignore_errors=True)
        folder.rename(previous)
    draft.rename(folder)
    shutil.rmtree(previous, ignore_errors=True)
