"""Tiny models with random weights, and what a plain forward of them says about sampled completions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    LogitsProcessorList,
    MinPLogitsWarper,
    MistralConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from grpo_lightning.engines.base import Sampling
from grpo_lightning.types import Completion

VOCABULARY = 61

_SHARED: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,  # vLLM's CPU kernels take no less
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}

FAMILIES: dict[str, Any] = {
    "llama": lambda: LlamaConfig(**_SHARED, tie_word_embeddings=False),
    "qwen2": lambda: Qwen2Config(**_SHARED, tie_word_embeddings=True),
    "qwen2_untied": lambda: Qwen2Config(**_SHARED, tie_word_embeddings=False),
    "qwen3": lambda: Qwen3Config(**_SHARED, tie_word_embeddings=True),
    "gemma3": lambda: Gemma3TextConfig(
        **_SHARED,
        sliding_window=16,
        layer_types=["sliding_attention", "full_attention"],
        query_pre_attn_scalar=32,
        tie_word_embeddings=True,
    ),
    "mistral": lambda: MistralConfig(**_SHARED, sliding_window=None, tie_word_embeddings=False),
    "gpt2": lambda: GPT2Config(
        vocab_size=VOCABULARY, n_embd=64, n_layer=2, n_head=2, n_positions=256, bos_token_id=None, eos_token_id=1
    ),
}


def save_model(family: str, folder: Path) -> PreTrainedModel:
    """A random model of the family in eval mode, and its folder, whose ``generation_config`` nobody may listen to."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(FAMILIES[family](), dtype=torch.float32).eval()
    model.save_pretrained(folder)
    smuggled = {"do_sample": True, "top_k": 1, "temperature": 0.1, "repetition_penalty": 5.0, "max_new_tokens": 2}
    (folder / "generation_config.json").write_text(json.dumps(smuggled))
    return model


@torch.no_grad()
def scramble(model: PreTrainedModel, *, seed: int, scale: float = 0.2) -> None:
    """Change every weight a lot."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=generator) * scale)


@torch.no_grad()
def force_token(model: PreTrainedModel, token: int) -> None:
    """Make a (tied or untied) Qwen2 say nothing but ``token``, by its embedding and head alone."""
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    model.model.norm.weight.fill_(1.0)
    embedding.fill_(1.0)
    head.fill_(1.0)
    head[token] = 3.0  # logits are 64 and, for the token, 192


@torch.no_grad()
def expected_logprobs(
    model: PreTrainedModel, prompt: list[int], completion: list[int], sampling: Sampling
) -> torch.Tensor:
    """By a plain forward and transformers' own filters, ``[T]``."""
    logits = model(input_ids=torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1].float()
    filters = LogitsProcessorList()
    if sampling.temperature not in (0, 1):
        filters.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.min_p:
        filters.append(MinPLogitsWarper(sampling.min_p))
    if sampling.top_k:
        filters.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        filters.append(TopPLogitsWarper(sampling.top_p))
    logprobs = torch.log_softmax(filters(None, logits), dim=-1)
    return logprobs.gather(1, torch.tensor(completion)[:, None]).squeeze(1)


def largest_gap(
    model: PreTrainedModel, prompts: list[list[int]], groups: list[list[Completion]], sampling: Sampling
) -> float:
    """Between the reported log-probabilities and those of a plain forward, over all tokens."""
    gaps = [
        (expected_logprobs(model, prompt, c.token_ids, sampling) - torch.tensor(c.logprobs)).abs().max().item()
        for prompt, group in zip(prompts, groups, strict=True)
        for c in group
    ]
    return max(gaps)


def token_ids(groups: list[list[Completion]]) -> list[list[list[int]]]:
    """Only the tokens, ``[P][G][T]``."""
    return [[completion.token_ids for completion in group] for group in groups]
