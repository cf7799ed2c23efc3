"""Sequence-classification models of Hugging Face form, loaded to score texts and not to be trained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_lightning.errors import UserError, in_one_line

if TYPE_CHECKING:  # imported when a model is loaded: processes that only run other rewards need no torch
    import torch
    from transformers import PreTrainedTokenizerBase

UNBOUNDED = 10**9
"""Tokenizers without a limit of their own report 1e30."""


def load_classifier(
    path: str,
    *,
    where: str,
    label: int,
    dtype: str | None,
    attn_implementation: str | None,
    device: torch.device,
    trust_remote_code: bool,
) -> torch.nn.Module:
    """A trained classifier.

    Args:
        path: Hugging Face id or folder.
        where: begins every message.
        label: the logit that will be read.
        dtype: of the weights; None keeps that of the file.
        attn_implementation: None takes transformers' choice, or ``eager`` for a model that caps its attention logits.
        device: a GPU to load to at once; every rank of a host loads, and its memory may not hold so many copies.
        trust_remote_code: run model code that comes with the weights.

    Raises:
        UserError: if there is no such model, or it is no classifier, or its head is not among its weights.
    """
    config = _from_pretrained("AutoConfig", path, where, trust_remote_code=trust_remote_code)
    kind = (config.architectures or ["a model of no stated architecture"])[0]
    if "TokenClassification" in kind:
        raise UserError(f"{where}: {kind} scores every token; give a sequence classifier")
    if label >= config.num_labels:
        raise UserError(f"{where}: label {label}, but it has {config.num_labels}, counted from 0")
    if attn_implementation is None and getattr(config.get_text_config(), "attn_logit_softcapping", None):
        attn_implementation = "eager"  # sdpa would leave the cap out without a word
    model, report = _from_pretrained(
        "AutoModelForSequenceClassification",
        path,
        where,
        config=config,
        dtype=dtype or "auto",
        attn_implementation=attn_implementation,
        output_loading_info=True,
        device_map=device if device.type == "cuda" else None,
        trust_remote_code=trust_remote_code,
    )
    if missing := sorted(report["missing_keys"]):
        raise UserError(
            f"{where}: {kind} lacks the weights {', '.join(missing[:3])}, so its scores would be random numbers; give "
            "a trained sequence classifier"
        )
    model.config.use_cache = False  # no token follows: keys and values of a whole batch would be kept for nothing
    _head_in_float32(model)
    return model


def load_tokenizer(path: str, *, where: str, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    """A tokenizer that cuts what is too long at its beginning.

    Raises:
        UserError: if there is none.
    """
    tokenizer = _from_pretrained("AutoTokenizer", path, where, trust_remote_code=trust_remote_code)
    tokenizer.truncation_side = "left"
    return tokenizer


def set_padding(
    model: torch.nn.Module, tokenizer: PreTrainedTokenizerBase, *, pad_token: str | None, where: str
) -> None:
    """One padding token for both: heads of decoders read the last token that is another.

    Args:
        model: whose configuration is set, if it has one.
        tokenizer: whose padding token counts; without one, that of the configuration.
        pad_token: counts before either.
        where: begins every message.

    Raises:
        UserError: if there is none, or it is no token.
    """
    configs = _configs(model)
    if pad_token is not None:
        if pad_token not in tokenizer.get_vocab():
            raise UserError(f"{where}: pad_token {pad_token!r} is not in its tokenizer's vocabulary")
        tokenizer.pad_token = pad_token
    elif tokenizer.pad_token_id is None:
        known = [id_ for config in configs if (id_ := getattr(config, "pad_token_id", None)) is not None]
        if not known:
            raise UserError(
                f"{where}: its tokenizer has no padding token, and which token the head reads depends on it; name one "
                f"by pad_token (TRL takes the end-of-sequence token, {tokenizer.eos_token!r})"
            )
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(known[0])
    for config in configs:
        config.pad_token_id = tokenizer.pad_token_id


def longest_text(
    model: torch.nn.Module, tokenizer: PreTrainedTokenizerBase, *, max_length: int | None, where: str
) -> int | None:
    """Tokens of the longest text that can be scored; None if nothing says.

    Args:
        model: its configuration states what it holds.
        tokenizer: states a limit as well.
        max_length: counts instead of the tokenizer's.
        where: begins every message.

    Raises:
        UserError: if the model holds fewer than ``max_length``.
    """
    names = ("max_position_embeddings", "n_positions")
    held = next((n for c in reversed(_configs(model)) for name in names if (n := getattr(c, name, None))), None)
    if max_length is not None:
        if held is not None and max_length > held:
            raise UserError(f"{where}: max_length {max_length} is beyond the {held} tokens that it holds")
        return max_length
    stated = tokenizer.model_max_length if tokenizer.model_max_length < UNBOUNDED else None
    return min((length for length in (held, stated) if length is not None), default=None)


def vocabulary_size(model: torch.nn.Module) -> int | None:
    """Rows of the input embeddings; None if the model does not say."""
    find = getattr(model, "get_input_embeddings", None)
    return getattr(find(), "num_embeddings", None) if callable(find) else None


def _configs(model: torch.nn.Module) -> list[Any]:
    """The model's configuration and, last, that of its text part; empty if it has none."""
    config = getattr(model, "config", None)
    if config is None:
        return []
    find = getattr(config, "get_text_config", None)
    return [config, find()] if callable(find) else [config]


def _head_in_float32(model: torch.nn.Module) -> None:
    """In bfloat16 a score near 10 is a multiple of 1/16: completions of one group would tie."""
    import torch

    head = getattr(model, "score", None)
    if isinstance(head, torch.nn.Linear) and head.weight.dtype != torch.float32:
        head.float()
        head.register_forward_pre_hook(lambda _, inputs: (inputs[0].float(), *inputs[1:]))


def _from_pretrained(loader: str, path: str, where: str, **options: Any) -> Any:
    """``from_pretrained`` of a class of transformers, its errors in one line."""
    import transformers
    from safetensors import SafetensorError

    looks_local = path.startswith((".", "/", "~")) or path.count("/") > 1 or Path(path).exists()
    if looks_local and not Path(path).is_dir():
        raise UserError(f"{where}: there is no folder {path}; give a Hugging Face model folder or hub id")
    try:
        return getattr(transformers, loader).from_pretrained(path, **options)
    except (ImportError, OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        part = {"AutoTokenizer": "its tokenizer", "AutoConfig": "its configuration"}.get(loader, "it")
        message = in_one_line(error).split(" Model type should be one of")[0]
        raise UserError(f"{where}: {part} cannot be loaded from {path}: {message}") from error
