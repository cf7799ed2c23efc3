"""Bytes and seconds, by hand on a small model and against the arithmetic of ``experiments.scaling``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.strategies import DDPStrategy

from experiments.scaling.architectures import QWEN2_5_1_5B, Architecture
from grpo_lightning.check import cost
from grpo_lightning.check.geometry import Plan
from grpo_lightning.functional.logprobs import CPU_CHUNK_BYTES
from grpo_lightning.models.flops import Shape

SHAPE = Shape(layers=2, hidden=8, heads=2, key_heads=1, head_size=4, mlp=16, vocabulary=100)
CPU = torch.device("cpu")
PLAN = Plan(
    prompts=4, group_size=2, windows=1, passes=1, ranks=1, prompt_length=10.0, completion_limit=20, rollouts=None
)


def sizes(**changes: Any) -> cost.Sizes:
    values = {"weights": 1000, "trained": 1000, "shape": SHAPE, "stored": 4, "computed": 4, "shards": 1}
    return cost.Sizes(**(values | changes))


def module(**changes: Any) -> Any:
    values = {"adapter": None, "optimizer_factory": None, "gradient_checkpointing": False, "needs_reference": False}
    return SimpleNamespace(**(values | changes))


def trainer(strategy: Any = None) -> Any:
    return SimpleNamespace(strategy=strategy or SimpleNamespace(root_device=CPU))


def test_memory_of_one_rank() -> None:
    """A token keeps 2 layers x (8 x 8 + 4 (6 x 8 + 2 x 4 + 4 x 16)) bytes and 2 x 8 x 8 at the ends: 1,216."""
    parts = cost.training_memory(sizes(), trainer(), module(needs_reference=True), tokens=10)
    assert parts == {
        "weights": 4000,
        "gradients": 4000,
        "optimizer's state": 8000,
        "reference": 4000,
        "logits, in blocks": 4 * 4 * 10 * 100,
        "activations": 10 * (2 * (64 + 4 * 120) + 128),
    }


def test_an_adapter_in_bfloat16_and_shards() -> None:
    given = sizes(trained=100, stored=2, computed=2)
    parts = cost.training_memory(given, trainer(), module(adapter=object(), needs_reference=True), tokens=10**9)
    assert parts["weights"] == 2 * 1000 + 4 * 100
    assert parts["optimizer's state"] == 8 * 100
    assert "reference" not in parts
    assert parts["logits, in blocks"] == 4 * CPU_CHUNK_BYTES
    parts = cost.training_memory(sizes(computed=2, shards=4), trainer(), module(), tokens=1)
    assert (parts["weights"], parts["copies to compute with"]) == (1000, 2 * 1000), "two of two layers are gathered"


def test_ddp_has_buckets() -> None:
    ddp = DDPStrategy(parallel_devices=[CPU])
    assert cost.training_memory(sizes(), trainer(ddp), module(), tokens=1)["DDP's buckets"] == 4000


@pytest.mark.parametrize("autocast", [False, True])
def test_kept_bytes_are_those_of_the_scaling_experiment(autocast: bool) -> None:
    model: Architecture = QWEN2_5_1_5B
    shape = Shape(
        layers=model.layers,
        hidden=model.hidden,
        heads=model.heads,
        key_heads=model.kv_heads,
        head_size=model.head_width,
        mlp=model.mlp,
        vocabulary=model.vocabulary,
    )
    stored = 4 if autocast else 2
    layer = model.kept_bytes(2, autocast=autocast)
    ends = 2 * (4 + 2) * model.hidden
    assert cost.kept_bytes(shape, computed=2, stored=stored, checkpointing=False) == model.layers * layer + ends
    checkpointed = model.layers * 2 * model.hidden + 2 * layer + ends
    assert cost.kept_bytes(shape, computed=2, stored=stored, checkpointing=True) == checkpointed
    assert cost.cache_bytes(shape, 2) == model.cache_bytes(2)


def test_the_sampler() -> None:
    engine = SimpleNamespace(batch_size=4)
    parts = cost.sampler_memory(sizes(), engine, device=CPU, plan=PLAN)
    assert parts == {"sampler's weights": 4000, "sampler's keys and values": 4 * 30 * 2 * 2 * 4 * 4}
    assert cost.sampler_memory(sizes(), SimpleNamespace(kv_cache_gib=2.0), device=CPU, plan=PLAN) == {
        "sampler's weights": 4000,
        "sampler's keys and values": 2 * 2**30,
    }


def test_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 2.5 GFLOP/s of peak, a GFLOP/s is reached; memory moves a megabyte a second, kernels take no time."""
    monkeypatch.setattr(cost, "peak_flops", lambda device, dtype: 2.5e9)
    monkeypatch.setattr(cost, "bandwidth", lambda device: 1e6)
    monkeypatch.setattr(cost, "LAUNCH_SECONDS", 0.0)
    forward = 4 * cost.forward_flops(SHAPE, [cost.Group(10, (20, 20))]) / 1e9
    found = cost.seconds(sizes(), module(needs_reference=True), PLAN, engine=SimpleNamespace(batch_size=4), device=CPU)
    # Two rounds of 20 tokens; each reads 4,000 bytes of weights and 4 x 20 tokens x 64 bytes of keys and values.
    assert found["generate"] == pytest.approx(2 * 20 * (4000 + 4 * 20 * 64) / 1e6)
    assert found["score"] == pytest.approx(forward)
    assert found["learn"] == pytest.approx(3 * forward)
    assert found["optimizer"] == pytest.approx(88 * 1000 / 1e6)
    assert cost.seconds(sizes(shape=None), module(), PLAN, engine=None, device=CPU) == {}
    supervised = cost.seconds(sizes(), module(gradient_checkpointing=True), PLAN, engine=None, device=CPU)
    assert supervised.keys() == {"learn", "optimizer"}
    assert supervised["learn"] == pytest.approx(4 * forward)


def test_the_table_says_what_does_not_fit() -> None:
    assert cost.table({"weights": 2e9, "gradients": 5e8}, total=3e9, ranks=1).splitlines() == [
        "weights                         2 GB",
        "gradients                     500 MB",
        "together, of a rank           2.5 GB",
        "device                          3 GB",
    ]
    last = cost.table({"weights": 2e9}, total=3e9, ranks=2).splitlines()[-1]
    assert last == "machine, for 2 ranks            3 GB  ! more than there is"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.014, "0.014 s"), (90, "90 s"), (120, "2 minutes"), (9000, "2.5 hours"), (2e5, "2.31 days")]
)
def test_times(seconds: float, text: str) -> None:
    assert cost.clock(seconds) == text
