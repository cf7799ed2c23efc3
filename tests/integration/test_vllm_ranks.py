"""Two ranks with an engine each, inside the trainer's process group."""

from __future__ import annotations

import os
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM

from grpo_lightning.engines.base import ModelSpec, Sampling
from grpo_lightning.engines.vllm import VLLMEngine
from tests.unit.engines.tiny_models import largest_gap, save_model, scramble, token_ids

pytestmark = [pytest.mark.integration, pytest.mark.vllm]

PROMPTS = [[3 + (7 * i + j) % 50 for j in range(4 + 9 * i)] for i in range(5)]
SEEDS = [1000 * i for i in range(5)]
RANK_PROMPTS = ([0, 1, 2], [3, 4])
SAMPLING = Sampling(max_completion_length=10)


def run_rank(rank: int, folder: str) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2, timeout=timedelta(seconds=120)
    )
    model = AutoModelForCausalLM.from_pretrained(f"{folder}/model")
    scramble(model, seed=1)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    engine = VLLMEngine(kv_cache_gib=0.25)
    engine.start(ModelSpec(name_or_path=f"{folder}/model", eos_token_ids=(1,), pad_token_id=1, max_length=128))
    engine.load_weights(model.named_parameters())
    mine = [PROMPTS[i] for i in RANK_PROMPTS[rank]]
    # Different numbers of requests, and one rank that generates once more: engines do not wait for each other.
    for _ in range(1 + rank):
        groups = engine.generate(mine, SAMPLING, group_size=2, seeds=[SEEDS[i] for i in RANK_PROMPTS[rank]])
    assert largest_gap(model, mine, groups, SAMPLING) < 3e-5
    engine.close()
    assert {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")} == environment
    # The trainer's process group outlives the engine.
    together: list = [None, None]
    dist.all_gather_object(together, token_ids(groups))
    if rank == 0:
        torch.save(together[0] + together[1], f"{folder}/samples.pt")
    dist.barrier()
    dist.destroy_process_group()


def test_two_ranks_draw_what_one_process_draws(tmp_path):
    model = save_model("qwen2", tmp_path / "model")
    torch.multiprocessing.spawn(run_rank, args=(str(tmp_path),), nprocs=2)
    engine = VLLMEngine(kv_cache_gib=0.25)
    try:
        engine.start(
            ModelSpec(name_or_path=str(tmp_path / "model"), eos_token_ids=(1,), pad_token_id=1, max_length=128)
        )
        scramble(model, seed=1)
        engine.load_weights(model.named_parameters())
        alone = token_ids(engine.generate(PROMPTS, SAMPLING, group_size=2, seeds=SEEDS))
    finally:
        engine.close()
    assert torch.load(tmp_path / "samples.pt") == alone
