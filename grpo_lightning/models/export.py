"""The trained policy as Hugging Face folders: the whole model for transformers and vLLM, and its adapter for peft."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from grpo_lightning import ranks
from grpo_lightning.files import draft_of
from grpo_lightning.models.adapters import TRAINED, whole
from grpo_lightning.models.weights import model_state, named_weights


def export_policy(
    policy: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    *,
    eos_token_ids: tuple[int, ...],
    dtype: torch.dtype | None = None,
    card: str = "",
) -> None:
    """Write weights (adapters merged), tokenizer, chat template, generation config and model card.

    A collective of all ranks; rank 0 writes. However an export is interrupted, one complete folder is left.

    Args:
        policy: a ``Policy``, plain or sharded.
        tokenizer: its tokenizer.
        folder: to be (re)written.
        eos_token_ids: put into the generation config.
        dtype: of the written weights; None keeps that in which they are trained.
        card: text of README.md.
    """
    dtype = dtype or next(iter(policy.model.parameters())).dtype
    state = _on_first_rank(
        (name, tensor.to(dtype) if tensor.is_floating_point() else tensor) for name, tensor in named_weights(policy)
    )
    if ranks.rank() != 0:
        return
    model = _unfilled(policy.model, dtype)
    # Only what a user of the model needs to stop in the right place: how to sample is the user's choice. (And some
    # published models come with a generation config that transformers refuses to save.)
    model.generation_config = GenerationConfig(
        eos_token_id=list(eos_token_ids), pad_token_id=tokenizer.pad_token_id, bos_token_id=tokenizer.bos_token_id
    )
    with _replaced(folder) as draft:
        model.save_pretrained(draft, state_dict=state)
        tokenizer.save_pretrained(draft)
        (draft / "README.md").write_text(card, encoding="utf-8")


def export_adapter(policy: nn.Module, folder: Path) -> None:
    """Write the trained adapter as peft reads it; a collective of all ranks, of which rank 0 writes.

    Args:
        policy: with an adapter.
        folder: to be (re)written.
    """
    own = {name: tensor for name, tensor in model_state(policy).items() if f".{TRAINED}." in name}
    full = _on_first_rank((name, whole(tensor)) for name, tensor in own.items())
    if ranks.rank() == 0:
        with _replaced(folder) as draft:
            policy.model.save_pretrained(draft, state_dict=full)


def _on_first_rank(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Full tensors by name, on the CPU; empty on other ranks, which take part in gathering them one by one."""
    return {name: tensor.detach().cpu() for name, tensor in tensors if ranks.rank() == 0}


def _unfilled(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """The plain model without weights; ``model`` itself may be in shards and have adapters."""
    from accelerate import init_empty_weights

    with init_empty_weights():
        plain = type(model)(copy.deepcopy(model.config)).to(dtype)
    plain.tie_weights()  # making each parameter empty replaced it, and with that broke the tie
    return plain


@contextmanager
def _replaced(folder: Path) -> Iterator[Path]:
    """A folder to write to, which then takes the place of ``folder``.

    Everything is written to a draft beside it and moved to ``folder`` when complete; the older folder stands as
    ``<folder>.previous`` until then.
    """
    draft, previous = draft_of(folder), folder.with_name(folder.name + ".previous")
    shutil.rmtree(draft, ignore_errors=True)
    yield draft
    if folder.exists():
        # Two renames: deleting the older folder takes long enough to be interrupted half-way.
        shutil.rmtree(previous, ignore_errors=True)
        folder.rename(previous)
    draft.rename(folder)
    shutil.rmtree(previous, ignore_errors=True)
