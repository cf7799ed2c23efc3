"""The paper model of a step against numbers worked out by hand, and the script for one GPU on a CPU."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch
from transformers import Qwen2ForCausalLM

from experiments.scaling import gpu, published
from experiments.scaling.architectures import LLAMA_3_70B, MODELS, QWEN2_5_0_5B, QWEN2_5_7B, Architecture, config_of
from experiments.scaling.generation import decode_seconds
from experiments.scaling.gpu_meter import Meter
from experiments.scaling.hardware import CARDS, Assumptions, collective_seconds
from experiments.scaling.memory import copies, training_bytes
from experiments.scaling.model import step
from experiments.scaling.recommend import recommended
from experiments.scaling.setting import Plan, Work, Workload, backward_flops, forward_flops, work

SMALL = Architecture("small", 1, 4, 2, 1, 8, 10, True, bias=False)
"""Matrices: queries and output 2 x 16, keys and values 2 x 8, MLP 3 x 32: 144 weights. Head: 40."""
WORK = Workload(prompts=1024, group=8, prompt=250, mean=2000, limit=8192)
H100, A100 = CARDS["H100"], CARDS["A100"]


def test_published_models_have_their_published_parameters() -> None:
    billions = (0.494, 1.54, 3.09, 7.62, 8.03, 14.8, 32.8, 70.6, 72.7)
    assert [model.parameters / 1e9 for model in MODELS] == pytest.approx(billions, rel=0.01)


def test_parameters_and_tensors_are_those_of_transformers() -> None:
    with torch.device("meta"):
        parameters = list(Qwen2ForCausalLM(config_of(QWEN2_5_0_5B)).parameters())
    assert sum(parameter.numel() for parameter in parameters) == QWEN2_5_0_5B.parameters
    assert len(parameters) == QWEN2_5_0_5B.tensors


def test_work_of_a_group_by_layout() -> None:
    # Completions never cut: decay = mean = 10, mean square 200. Two of them after a prompt of 6.
    workload = Workload(prompts=1, group=2, prompt=6, mean=10, limit=10_000)
    shared = work(workload, Plan(gpus=1, layout="shared"))
    packed = work(workload, Plan(gpus=1, layout="packed"))
    assert (shared.tokens, packed.tokens) == pytest.approx((6 + 20, 2 * 16))
    own = 2 * (6 * 10 + 200 / 2)  # each completion token sees the prompt and those before it
    assert (shared.pairs, packed.pairs) == pytest.approx((18 + own, 2 * 18 + own), rel=1e-6)
    assert shared.scored == packed.scored == 20
    # Rows of like length: 27 and 16, then 11 and 7 tokens; with a third row of 27 there would be 81.
    padded = work(dataclasses.replace(workload, group=4), Plan(gpus=1, layout="padded", micro_batch_tokens=60))
    lengths = [6 + round(-10 * math.log(1 - share)) for share in (0.875, 0.625, 0.375, 0.125)]
    assert padded.tokens == 2 * lengths[0] + 2 * lengths[2]
    assert padded.micro_batches == 2
    # Micro-batches of 13 tokens part the group in two, and each half computes the prompt.
    assert work(workload, Plan(gpus=1, layout="shared", micro_batch_tokens=13)).tokens == pytest.approx(2 * 16)


def test_lengths_have_the_mean_that_was_asked_for() -> None:
    assert WORK.decay > WORK.mean  # since some are cut
    lengths = WORK.lengths(2000)
    assert sum(lengths) / 2000 == pytest.approx(2000, rel=0.002)
    assert sum(length**2 for length in lengths) / 2000 == pytest.approx(WORK.square, rel=0.002)
    assert max(lengths) == 8192


def test_flops_by_hand() -> None:
    done = Work(tokens=6, scored=3, pairs=21, micro_batches=1)
    forward = 2 * 144 * 6 + 4 * 4 * 21 + 2 * 40 * 3
    assert forward_flops(SMALL, done) == forward
    backward = 4 * 144 * 6 + 2.5 * 4 * 4 * 21 + 6 * 40 * 3
    assert backward_flops(SMALL, done, Plan(gpus=1)) == backward
    again = 2 * 144 * 6 + 4 * 4 * 21
    assert backward_flops(SMALL, done, Plan(gpus=1, checkpointing=True)) == backward + again
    assert backward_flops(SMALL, done, Plan(gpus=1, lora=8)) == 2 * 144 * 6 + 2.5 * 4 * 4 * 21 + 4 * 40 * 3


def test_memory_by_hand() -> None:
    plan = Plan(gpus=8, strategy="fsdp2", checkpointing=True)
    found = training_bytes(QWEN2_5_7B, WORK, plan, card=H100, assumed=Assumptions())
    size = 7_615_616_512
    assert (found["weights"], found["gradients"], found["optimizer"]) == (size / 2, size / 2, size)
    # A token: 28 layers' inputs in bfloat16, one layer twice (8 H in 4 bytes of norms' inputs; 6 H, 2 x 512 and 4 I in
    # 2 bytes), and the last states. H = 3,584, I = 18,944.
    layer = 8 * 3584 + 2 * (6 * 3584 + 2 * 512 + 4 * 18_944)
    token = 28 * 2 * 3584 + 2 * layer + 2 * 6 * 3584
    assert found["activations"] == 16_384 * token + 4 * 64 * 2**20
    # An adapter has no float32 copies: 2 bytes a weight, 16 for each of its own.
    adapter = 28 * 16 * (4 * 3584 + 2 * (3584 + 512) + 3 * (3584 + 18_944))
    small = training_bytes(QWEN2_5_7B, WORK, Plan(gpus=1, lora=16), card=H100, assumed=Assumptions())
    assert small["weights"] + small["gradients"] + small["optimizer"] == 2 * size + 16 * adapter
    assert copies(QWEN2_5_7B, Plan(gpus=1, lora=16)) == 0


def test_collectives_and_decoding_by_hand() -> None:
    assumed = Assumptions()
    host = collective_seconds(8e9, 8, card=H100, assumed=assumed)
    assert host == pytest.approx(7e9 / 450e9 / 0.8 + 20e-6 + 14e-6)
    # Two hosts of A100: half of it crosses a network of 200 GB/s, slower than 15/16 of it over links of 300 GB/s?
    both = collective_seconds(8e9, 16, card=A100, assumed=assumed)
    assert both == pytest.approx(max(7.5e9 / 300e9, 4e9 / 200e9) / 0.8 + 20e-6 + 30e-6)
    assert collective_seconds(8e9, 1, card=A100, assumed=assumed) == 0
    # All weights but the embedding, and 1,000 tokens of cache: 57,344 bytes each.
    read = 2 * (7_615_616_512 - 152_064 * 3584 - 3584) + 1000 * 57_344
    taken = decode_seconds(QWEN2_5_7B, Plan(gpus=1), running=1, context=1000, card=A100, assumed=assumed)
    assert taken == pytest.approx(read / 2.039e12 / 0.8 + 1e-3 + 10e-6)


def test_larger_is_slower_and_more_gpus_are_faster() -> None:
    plan = Plan(gpus=64, strategy="fsdp2", checkpointing=True)
    models = [model for model in MODELS if "Qwen" in model.name and model.parameters < 2e10]
    steps = [made for model in models if (made := step(model, WORK, plan, card=CARDS["H200"]))]
    seconds, sizes = [made.seconds for made in steps], [sum(made.memory.values()) for made in steps]
    assert len(steps) == 5
    assert seconds == sorted(seconds)
    assert sizes == sorted(sizes)
    for many in (128, 512):
        faster = step(QWEN2_5_7B, WORK, dataclasses.replace(plan, gpus=many), card=H100)
        assert faster is not None
        assert faster.seconds < seconds[3]
    longer = step(QWEN2_5_7B, dataclasses.replace(WORK, reference=True), plan, card=H100)
    assert longer is not None
    assert longer.phases["score"] == pytest.approx(longer.phases["forward"])


def test_what_is_recommended_fits() -> None:
    (small, _), (seven, made) = (recommended(m, WORK, 1, card=H100) or (None, None) for m in (QWEN2_5_0_5B, QWEN2_5_7B))
    assert (small.strategy, small.lora) == ("single", None)
    assert seven.lora == 16  # 16 bytes a weight are 122 GB
    assert sum(made.memory.values()) < 0.92 * H100.memory
    assert recommended(LLAMA_3_70B, WORK, 64, card=H100) is None  # an engine on one GPU cannot hold it


def test_published_figures_are_met_within_a_quarter() -> None:
    assert all(0.75 < check.predicted / check.published < 1.25 for check in published.checks())


# --- the script for one GPU --------------------------------------------------------------------------------------


def test_every_part_of_the_script_runs(tmp_path: Path) -> None:
    found = gpu.measure(tmp_path / "gpu.json", tiny=True)
    assert found == json.loads((tmp_path / "gpu.json").read_text())
    parts = {name: part for name in gpu.PARTS if "error" in (part := found[name])}
    assert not parts
    for form in ("float32", "bfloat16", "mixed"):
        case = found["head"][f"tiny, {form}"]
        assert case["fused / plain seconds"] == case["fused"]["seconds"] / case["plain"]["seconds"]
        assert case["largest difference of log-probabilities"] < (1e-5 if form == "float32" else 0.05)
    assert found["packing"]["largest difference of log-probabilities"] < 1e-5
    assert found["packing"]["tokens"] < found["packing"]["padded tokens"]
    assert found["fsdp2"]["fsdp2"]["seconds"] > 0


def test_a_part_that_fails_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(meter: Meter, sizes: dict[str, object]) -> dict[str, object]:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(gpu, "PARTS", {"first": broken, "second": lambda meter, sizes: {"fine": 1}})
    found = gpu.measure(tmp_path / "gpu.json", tiny=True)
    assert found["first"]["error"] == "RuntimeError: no such kernel"
    assert found["second"]["fine"] == 1
    assert gpu.measure(tmp_path / "gpu.json", minutes=-1)["second"] == {"skipped": "-1 minutes were over"}


def test_bytes_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    held = [100]
    pretended = {
        "synchronize": lambda: None,
        "empty_cache": lambda: held.append(0),
        "reset_peak_memory_stats": lambda: None,
        "memory_allocated": lambda: held[-1],
        "max_memory_allocated": lambda: max(held),
        "get_device_name": lambda: "a card",
    }
    for name, function in pretended.items():
        monkeypatch.setattr(torch.cuda, name, function)
    meter = Meter("cuda")
    assert meter.peak(lambda: held.extend([900, 300])) == {"peak": 800, "left": 200}
    assert meter.name() == "a card"
    assert math.isfinite(meter.seconds(lambda: None, repeats=1))
    meter.free()

    def too_large() -> dict[str, object]:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB. More")

    assert meter.if_it_fits(too_large) == {"error": "CUDA out of memory"}
