"""What else vLLM may be started with: other model kinds, other settings, and settings that it cannot start with."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from grpo_lightning.engines.base import ModelSpec, Sampling
from grpo_lightning.engines.transformers import TransformersEngine
from grpo_lightning.engines.vllm import VLLMEngine
from grpo_lightning.errors import UserError
from tests.unit.engines.tiny_models import FAMILIES, largest_gap, save_model, scramble, token_ids

pytestmark = [pytest.mark.integration, pytest.mark.vllm]

PROMPTS = [[3 + (7 * i + j) % 50 for j in range(4 + 5 * i)] for i in range(5)]
SEEDS = [2**40 + 1000 * i for i in range(5)]
SAMPLING = Sampling(max_completion_length=24)
GREEDY = Sampling(max_completion_length=24, temperature=0)


def model_spec(folder, **options) -> ModelSpec:
    return ModelSpec(
        **{"eos_token_ids": (1,), "pad_token_id": 1, "max_length": 128, **options}, name_or_path=str(folder)
    )


@pytest.fixture
def engine():
    engine = VLLMEngine(kv_cache_gib=0.25)
    yield engine
    engine.close()


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"qwen2", "qwen2_untied"}))
def test_model_kinds(family, tmp_path, engine):
    model = save_model(family, tmp_path)
    engine.start(model_spec(tmp_path))
    for seed in (1, 2):
        scramble(model, seed=seed)
        engine.load_weights(model.named_parameters())
        groups = engine.generate(PROMPTS, SAMPLING, group_size=3, seeds=SEEDS)
        assert largest_gap(model, PROMPTS, groups, SAMPLING) < 1e-4
    other = TransformersEngine()
    other.start(model_spec(tmp_path))
    other.load_weights(model.named_parameters())
    assert token_ids(engine.generate(PROMPTS, GREEDY, group_size=1, seeds=SEEDS)) == token_ids(
        other.generate(PROMPTS, GREEDY, group_size=1, seeds=SEEDS)
    )


def test_bfloat16_is_fed_with_float32(tmp_path, engine):
    model = save_model("qwen2", tmp_path)
    scramble(model, seed=1, scale=0.05)
    engine.start(model_spec(tmp_path, dtype=torch.bfloat16))
    engine.load_weights(model.named_parameters())
    groups = engine.generate(PROMPTS, SAMPLING, group_size=3, seeds=SEEDS)
    assert largest_gap(model, PROMPTS, groups, SAMPLING) < 0.1


def test_neither_a_tiny_cache_nor_a_small_batch_changes_the_samples(tmp_path, engine):
    model = save_model("qwen2", tmp_path)
    scramble(model, seed=1)
    samples = []
    for settings in ({}, {"kv_cache_gib": 0.0005}, {"max_sequences": 4}, {"enable_prefix_caching": False}):
        other = VLLMEngine(**{"kv_cache_gib": 0.25, **settings})
        try:
            other.start(model_spec(tmp_path))
            other.load_weights(model.named_parameters())
            samples.append(token_ids(other.generate(PROMPTS, SAMPLING, group_size=8, seeds=SEEDS)))
        finally:
            other.close()
    assert all(sample == samples[0] for sample in samples)


def test_what_cannot_start_says_why_in_one_line_and_leaves_room_for_what_can(tmp_path, engine, caplog):
    model = save_model("qwen2", tmp_path / "right")
    narrow = LlamaConfig(
        vocab_size=61, hidden_size=64, intermediate_size=96, num_hidden_layers=1, num_attention_heads=4
    )
    AutoModelForCausalLM.from_config(narrow).save_pretrained(tmp_path / "narrow")  # heads of 16: no such CPU kernel
    attempts = [
        (VLLMEngine(kv_cache_gib=0.25), "narrow", 128, "vLLM cannot start: .*head_dim=16"),
        (VLLMEngine(kv_cache_gib=1e6), "right", 128, "vLLM cannot start: .*kv_cache_gib"),
        (VLLMEngine(kv_cache_gib=1e-6), "right", 128, "vLLM cannot start: No available memory.*kv_cache_gib"),
        (VLLMEngine(block_size=20), "right", 128, "vLLM cannot start: .*block size"),
        (VLLMEngine(), "right", 300, "vLLM cannot start: .*300.*max_position_embeddings=256"),
        (VLLMEngine(max_model_length=100), "right", 128, r"--rollout\.engine\.max_model_length is 100"),
    ]
    for failing, folder, length, message in attempts:
        with pytest.raises(UserError, match=message) as caught:
            failing.start(model_spec(tmp_path / folder, max_length=length))
        assert "\n" not in str(caught.value)
        assert not torch.distributed.is_initialized()
    engine.sleep_level = 1
    engine.start(model_spec(tmp_path / "right"))
    assert "no effect on CPUs" in caplog.text
    engine.load_weights(model.named_parameters())
    assert len(engine.generate(PROMPTS, SAMPLING, group_size=1, seeds=SEEDS)) == 5
