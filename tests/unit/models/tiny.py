"""Models of 97 tokens, hidden size 32 and two layers, in several architectures, built on the spot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from grpo_lightning.types import SequenceBatch

VOCABULARY = 97
COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("LlamaForCausalLM", {}),
    "Qwen2": ("Qwen2ForCausalLM", {"tie_word_embeddings": True}),
    "Qwen3": ("Qwen3ForCausalLM", {"head_dim": 8}),
    # A cap of 2 is low enough to bend the logits of random weights.
    "Gemma2": ("Gemma2ForCausalLM", {"head_dim": 8, "final_logit_softcapping": 2.0, "sliding_window": 4}),
    "Gemma3": (
        "Gemma3ForCausalLM",
        {"head_dim": 8, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "Mistral": ("MistralForCausalLM", {"sliding_window": 4, "head_dim": 8}),
    "GPT-2": ("GPT2LMHeadModel", {"n_inner": 64, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}),
    "Phi": ("PhiForCausalLM", {}),  # a head with a bias
    "Cohere": ("CohereForCausalLM", {"logit_scale": 0.25}),
    "Granite": ("GraniteForCausalLM", {"logits_scaling": 4.0}),
}


def tiny_model(name: str = "Llama", *, seed: int = 0, **options: Any) -> PreTrainedModel:
    """A random model in eval mode; its weights are large enough to give token probabilities of all sizes."""
    kind, own = ARCHITECTURES[name]
    model_class = getattr(transformers, kind)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(model_class.config_class(**COMMON | own | options))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(std=0.3)
                else:
                    parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def uniform_model() -> PreTrainedModel:
    """Every next token has probability 1/97: the head is zero."""
    model = tiny_model("Llama")
    torch.nn.init.zeros_(model.lm_head.weight)
    return model


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """97 tokens: ``<pad>``, ``<eos>``, two tags that are special tokens, letters and digits."""
    pieces = ["<pad>", "<eos>", "<think>", "</think>"] + [chr(33 + i) for i in range(VOCABULARY - 5)] + [" "]
    tokenizer = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        extra_special_tokens=["<think>", "</think>"],
    )


def saved_policy(folder: Path, name: str = "Qwen2", **options: Any) -> str:
    """Model and tokenizer as a folder that ``--model.policy`` takes."""
    tiny_model(name, **options).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return str(folder)


def sequences(*rows: tuple[int, int], seed: int = 0) -> SequenceBatch:
    """Random rows of (prompt tokens, completion tokens), padded with token 0 on the right."""
    generator = torch.Generator().manual_seed(seed)
    longest, widest = max(p + c for p, c in rows), max(c for _, c in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros(len(rows), widest)
    for row, (prompt, completion) in enumerate(rows):
        ids[row, : prompt + completion] = torch.randint(2, VOCABULARY, (prompt + completion,), generator=generator)
        mask[row, :completion] = 1
    return SequenceBatch(
        input_ids=ids,
        sequence_lengths=torch.tensor([p + c for p, c in rows]),
        prompt_lengths=torch.tensor([p for p, _ in rows]),
        completion_mask=mask,
    )
