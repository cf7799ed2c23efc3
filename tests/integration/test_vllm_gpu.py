"""vLLM on a GPU: prefix cache, sleep levels, CUDA graphs. Has not run on a card yet; needs none of the CPU's overrides.

On a machine with one: ``pytest tests/integration/test_vllm_gpu.py`` (about three minutes).
"""

from __future__ import annotations

import pytest
import torch

from grpo_lightning.engines.base import ModelSpec, Sampling
from grpo_lightning.engines.vllm import VLLMEngine
from tests.unit.engines.tiny_models import largest_gap, save_model, scramble

pytestmark = [
    pytest.mark.integration,
    pytest.mark.vllm,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

PROMPTS = [[3 + (7 * i + j) % 50 for j in range(40 + 30 * i)] for i in range(4)]
SAMPLING = Sampling(max_completion_length=32)
BOUND = 0.05
"""Mean gap in nats that float32 weights in bfloat16 arithmetic stay under; stale weights or keys give whole nats."""


def draw(engine: VLLMEngine, sampling: Sampling = SAMPLING):
    return engine.generate(PROMPTS, sampling, group_size=4, seeds=[2**40 + 1000 * i for i in range(len(PROMPTS))])


@pytest.mark.parametrize("family", ["qwen2", "qwen2_untied"])
@pytest.mark.parametrize("sleep_level", [0, 1, 2])
def test_the_sampler_follows_the_weights_through_sleep(family: str, sleep_level: int, tmp_path) -> None:
    model = save_model(family, tmp_path)
    engine = VLLMEngine(sleep_level=sleep_level, memory_share=0.3)
    engine.start(
        ModelSpec(
            name_or_path=str(tmp_path),
            eos_token_ids=(1,),
            pad_token_id=1,
            max_length=256,
            dtype=torch.float32,
            device=torch.device("cuda"),
        )
    )
    free = []
    try:
        for round_number in range(10):
            scramble(model, seed=round_number, scale=0.3)
            engine.wake()
            engine.load_weights((name, p.detach().cuda()) for name, p in model.named_parameters())
            groups = draw(engine)
            # The same prompts every round, with the prefix cache on: keys of older weights would show here.
            assert largest_gap(model, PROMPTS, groups, SAMPLING) < BOUND, f"round {round_number}"
            engine.sleep()
            free.append(torch.cuda.mem_get_info()[0])
    finally:
        engine.close()
    assert free[-1] >= 0.98 * free[0], "memory leaks from round to round"
