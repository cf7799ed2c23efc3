"""Operations of a step, by hand; and what a device can do, by its name."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers import GPT2Config, MixtralConfig, PreTrainedConfig

from experiments.benchmark.model_w2 import random_model
from grpo_lightning.models import flops
from grpo_lightning.models.flops import Group, Shape, forward_flops, matmul_rate, peak_by_name, peak_flops

SHAPE = Shape(layers=2, hidden=8, heads=4, key_heads=2, head_size=3, mlp=10, vocabulary=100)


def test_operations_by_hand() -> None:
    # A layer: queries and output 8 x 12 each, keys and values 8 x 6 each, three of 8 x 10.
    assert SHAPE.weights == 2 * (2 * 96 + 2 * 48 + 3 * 80) == 1056
    # A prompt of 2 tokens looks at 1 + 2 of them; its completions of 1 and 2 tokens at 3, and 3 + 4.
    pairs = 3 + 3 + 7
    expected = 2 * 1056 * 5 + 4 * 2 * 12 * pairs + 2 * 8 * 100 * 3
    assert forward_flops(SHAPE, [Group(2, (1, 2))]) == expected
    assert forward_flops(SHAPE, [Group(2, (1, 2))] * 3) == 3 * expected


def test_the_shape_of_a_model_is_read_from_its_weights() -> None:
    model = random_model(hidden=192, mlp=64, layers=3, vocabulary=200)
    matrices = {n: p.numel() for n, p in model.named_parameters() if p.dim() == 2 and "embed" not in n}
    assert Shape.of(model.config).weights == sum(matrices.values())


@pytest.mark.parametrize("config", [GPT2Config(), MixtralConfig()])
def test_another_layout_has_no_shape(config: PreTrainedConfig) -> None:
    with pytest.raises(AttributeError):
        Shape.of(config)


@pytest.mark.parametrize(
    ("name", "teraflops"),
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H200", 989),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA L4", 121),
        ("NVIDIA L40S", 362),
        ("NVIDIA GeForce RTX 4090", 165),
        ("AMD Instinct MI300X", 1307),
        ("NVIDIA A100-PCIE-40GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("NVIDIA GH200 480GB", 989),
        ("NVIDIA H100 NVL", 835),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 3090 Ti", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", None),
        ("NVIDIA A10G", None),  # another chip than the A10
        ("Tesla T4", None),  # no bfloat16
    ],
)
def test_peaks_go_by_whole_words_of_the_name(name: str, teraflops: float | None) -> None:
    assert peak_by_name(name) == (None if teraflops is None else teraflops * 1e12)


def test_a_known_gpu_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100-SXM4-40GB")
    assert peak_flops(torch.device("cuda", 3), torch.bfloat16) == 312e12


def test_a_processor_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of 2 · 8³ operations: the first does not count, and of the others the median, 2 s."""
    times = iter([0.0, 9.0, 10.0, 11.0, 20.0, 22.0, 30.0, 33.0])
    monkeypatch.setattr(flops, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    state = torch.get_rng_state()
    assert matmul_rate(torch.float32, device="cpu", size=8, repeats=3) == 2 * 8**3 / 2
    assert torch.equal(torch.get_rng_state(), state)


def test_a_gpu_that_is_not_known_is_measured_by_the_largest_product_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def rate(dtype: torch.dtype, *, device: str, size: int, repeats: int) -> float:
        tried.append(size)
        if size > 4096:
            raise torch.OutOfMemoryError
        return 5e12

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200 NVL")
    monkeypatch.setattr(flops, "matmul_rate", rate)
    assert peak_flops(torch.device("cuda", 5), torch.bfloat16) == 5e12
    assert tried == [8192, 4096]
