"""Hugging Face causal language models and tokenizers, by id or folder."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedTokenizerBase,
)

from grpo_lightning.errors import UserError
from grpo_lightning.models.policy import Policy

log = logging.getLogger(__name__)
DType = Literal["float32", "bfloat16"]
RANDOM_IN_TRAINING = ("dropout", "drop", "dropout_p", "dropout_prob", "jitter_noise", "jitter_eps")
"""Ends of the names of a configuration's numbers."""
QUICKSTART = "quickstart/base/hf"
"""Ends the path of the model that `make quickstart` trains first."""
NO_NOISE = ("phimoe", "router_jitter_noise")
"""Says how close two experts are to be mixed, also of a model that samples."""


def load_config(name_or_path: str, *, flag: str, trust_remote_code: bool = False) -> PretrainedConfig:
    """A model's configuration, with every dropout and the noise of a router's input set to 0.

    Either would make the policy that is trained another one than the policy that sampled.

    Raises:
        UserError: if there is no such model, naming ``flag``.
    """
    config = _load(AutoConfig.from_pretrained, name_or_path, flag, trust_remote_code=trust_remote_code)
    for part in [config, *(v for v in vars(config).values() if isinstance(v, PretrainedConfig))]:
        for key, value in vars(part).items():
            if key.endswith(RANDOM_IN_TRAINING) and isinstance(value, float) and (part.model_type, key) != NO_NOISE:
                setattr(part, key, 0.0)
    return config


def load_tokenizer(name_or_path: str, *, flag: str, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """A tokenizer; one without a padding token pads with its end-of-sequence token (the mask tells them apart)."""
    tokenizer = _load(AutoTokenizer.from_pretrained, name_or_path, flag, trust_remote_code=trust_remote_code)
    if tokenizer.eos_token_id is None:
        raise UserError(f"{flag} {name_or_path}: its tokenizer has no end-of-sequence token, so no answer could end")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_policy(
    name_or_path: str,
    *,
    config: PretrainedConfig,
    flag: str,
    dtype: DType,
    attn_implementation: str,
    packing: bool = False,
    gradient_checkpointing: bool = False,
    trust_remote_code: bool = False,
    device: torch.device | None = None,
) -> Policy:
    """A causal language model, wrapped to score tokens.

    Args:
        name_or_path: Hugging Face id or folder.
        config: from ``load_config``.
        flag: the option that named the model, for messages.
        dtype: of the weights.
        attn_implementation: ``sdpa``, ``eager``, ``flash_attention_2``, ...
        packing: compute sequences one behind the other instead of padded, where the model can.
        gradient_checkpointing: keep only each layer's input for the backward pass and compute the rest again.
        trust_remote_code: run model code that comes with the weights.
        device: a GPU to load to at once; every rank of a host loads, and its memory may not hold so many copies.

    Raises:
        UserError: if the model cannot be loaded, is incomplete, does something unknown to its logits, or
            scores otherwise in training.
    """
    if attn_implementation == "sdpa" and getattr(config.get_text_config(), "attn_logit_softcapping", None):
        # transformers drops the cap without a word: another model than the one that samples would be trained.
        raise UserError(
            f"--model.attn_implementation sdpa: it leaves out the cap that {flag} {name_or_path} puts on its attention "
            "logits; use eager or flash_attention_2"
        )
    model, report = _load(
        AutoModelForCausalLM.from_pretrained,
        name_or_path,
        flag,
        config=config,
        dtype=getattr(torch, dtype),
        attn_implementation=attn_implementation,
        trust_remote_code=trust_remote_code,
        output_loading_info=True,
        device_map=device if device is not None and device.type == "cuda" else None,
    )
    if missing := sorted(report["missing_keys"]):
        raise UserError(
            f"{flag} {name_or_path}: its weights lack {len(missing)} tensors ({', '.join(missing[:3])}), which would "
            "start from random numbers; is the download or export complete?"
        )
    policy = Policy(model, packing=packing)
    policy.verify()
    if gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return policy


def warn_of_bfloat16_weights(flag: str) -> None:
    """Say what training bfloat16 weights does, naming the option that asked for it."""
    log.warning(
        "%s: weights in bfloat16. Steps of lr 1e-6 are below its rounding and move almost no weight; "
        "use --model.dtype float32 with --trainer.precision bf16-mixed for bfloat16 speed.",
        flag,
    )


def eos_token_ids(name_or_path: str, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Every id that ends a sequence: the tokenizer's and those of the model's generation config."""
    ids = {int(tokenizer.eos_token_id)}
    try:
        listed = GenerationConfig.from_pretrained(name_or_path).eos_token_id
    except OSError:
        listed = None
    ids.update([listed] if isinstance(listed, int) else listed or [])
    return tuple(sorted(ids))


def context_length(config: PretrainedConfig) -> int | None:
    """Longest sequence the model was made for, in tokens; None if its configuration does not say."""
    text = config.get_text_config()
    return getattr(text, "max_position_embeddings", None) or getattr(text, "n_positions", None)


def _load(loader: Callable[..., Any], name_or_path: str, flag: str, **kwargs: Any) -> Any:
    # A hub id is "name" or "owner/name"; anything else is a folder.
    looks_local = name_or_path.startswith((".", "/", "~")) or name_or_path.count("/") > 1 or Path(name_or_path).exists()
    if looks_local and not Path(name_or_path).is_dir():
        made = "; `make quickstart` makes it" if name_or_path.endswith(QUICKSTART) else ""
        raise UserError(f"{flag} {name_or_path}: no such folder; give a Hugging Face model folder or hub id{made}")
    try:
        return loader(name_or_path, **kwargs)
    except ImportError as error:
        raise UserError(f"{flag} {name_or_path}: needs a package that is missing: {_first_line(error)}") from error
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        hint = "is it a Hugging Face model folder?" if looks_local else "no such folder here, and the hub has no answer"
        raise UserError(f"{flag} {name_or_path}: cannot be loaded ({hint}): {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
