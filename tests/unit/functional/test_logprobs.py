"""Chunked log-probabilities equal the plain form, in value, gradient and precision, and stay small."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from grpo_lightning.functional.logprobs import head_logprobs, logprobs_from_logits

N, H, V = 23, 8, 41


def _inputs(dtype: torch.dtype, *, bias: bool) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(N, H, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    weight = (torch.randn(V, H, generator=generator, dtype=torch.float64) / H**0.5).to(dtype).requires_grad_()
    offset = torch.randn(V, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() if bias else None
    return hidden, weight, torch.randint(0, V, (N,), generator=generator), offset


def _plain(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    scale: float = 1.0,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """The formula of the docstring, with every logit in memory and torch's own gradients."""
    logits = hidden @ weight.T
    if bias is not None:
        logits = logits + bias
    logits = logits * scale
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    log_p = (logits / temperature).log_softmax(-1)
    return log_p[torch.arange(len(targets)), targets], -(log_p.exp() * log_p).sum(-1)


CASES = {
    "plain": {},
    "temperature": {"temperature": 0.6},
    "scale": {"scale": 0.25, "temperature": 1.5},
    "softcap": {"softcap": 3.0},
    "softcap, scale and temperature": {"softcap": 3.0, "scale": 2.0, "temperature": 0.6},
}


@pytest.mark.parametrize("options", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("logits", [9, 100, 600, 10_000], ids=["3 x 3", "10 x 10", "all tokens", "one block"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)], ids=["f64", "f32"])
def test_equals_the_plain_form_in_values_and_gradients(
    options: dict, bias: bool, logits: int, dtype: torch.dtype, tolerance: float
) -> None:
    hidden, weight, targets, offset = _inputs(dtype, bias=bias)
    leaves = [hidden, weight] + ([offset] if offset is not None else [])
    slopes = torch.linspace(-1, 1, N, dtype=dtype), torch.linspace(0.3, -0.7, N, dtype=dtype)

    def run(function, **more) -> list[Tensor]:
        outputs = function(hidden, weight, targets, bias=offset, **options, **more)
        loss = sum((slope * output).sum() for slope, output in zip(slopes, outputs, strict=True))
        return [*outputs, *torch.autograd.grad(loss, leaves)]

    for ours, plain in zip(run(head_logprobs, chunk_bytes=4 * logits), run(_plain), strict=True):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours, plain, rtol=0, atol=tolerance * max(1, float(plain.detach().abs().max())))


@pytest.mark.parametrize("softcap", [None, 3.0])
def test_gradients_of_logprobs_and_entropy_agree_with_finite_differences(softcap: float | None) -> None:
    hidden, weight, targets, bias = _inputs(torch.float64, bias=True)

    def scores(h: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return head_logprobs(h, w, targets[:5], bias=b, temperature=0.8, softcap=softcap, chunk_bytes=4 * 40)

    leaves = [x.detach().clone().requires_grad_() for x in (hidden[:5], weight, bias)]
    assert torch.autograd.gradcheck(scores, leaves, atol=1e-7)


@pytest.mark.parametrize("which", ["hidden", "weight", "bias"])
def test_only_the_gradients_that_are_asked_for_are_made(which: str) -> None:
    hidden, weight, targets, bias = _inputs(torch.float64, bias=True)
    leaves = {"hidden": hidden, "weight": weight, "bias": bias}
    for name, leaf in leaves.items():
        leaf.requires_grad_(name == which)

    def gradient(function, **more) -> Tensor:
        logprobs, _ = function(hidden, weight, targets, bias=bias, **more)
        return torch.autograd.grad(logprobs.sum(), leaves[which])[0]

    torch.testing.assert_close(gradient(head_logprobs, chunk_bytes=4 * 100), gradient(_plain), rtol=0, atol=1e-10)


@pytest.mark.parametrize("which", [0, 1], ids=["log-probability", "entropy"])
def test_a_loss_of_one_output_alone(which: int) -> None:
    hidden, weight, targets, _ = _inputs(torch.float64, bias=False)

    def gradients(function, **more) -> tuple[Tensor, ...]:
        return torch.autograd.grad(function(hidden, weight, targets, **more)[which].sum(), (hidden, weight))

    for ours, plain in zip(gradients(head_logprobs, chunk_bytes=4 * 100), gradients(_plain), strict=True):
        torch.testing.assert_close(ours, plain, rtol=0, atol=1e-10)


def test_running_sums_over_many_blocks_lose_nothing() -> None:
    # The largest logit comes last or first, far above the rest: the running sums are rescaled at every block or never.
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(3000, 16, generator=generator).double()
    weight[:, 0] = torch.linspace(-6, 6, 3000)
    hidden = torch.randn(64, 16, generator=generator).double()
    hidden[:, 0] = torch.linspace(-5, 5, 64)
    targets = torch.randint(0, 3000, (64,), generator=generator)
    exact = _plain(hidden, weight, targets)
    ours = head_logprobs(hidden.float(), weight.float(), targets, chunk_bytes=4 * 64 * 20)
    logits_error = (hidden.float() @ weight.float().T - hidden @ weight.T).abs().max()  # up to 4e-6
    for ours_, exact_ in zip(ours, exact, strict=True):
        assert (ours_ - exact_).abs().max() < 3 * logits_error


def test_entropy_of_a_uniform_and_of_a_certain_distribution() -> None:
    weight = torch.zeros(97, 2)
    uniform = head_logprobs(torch.ones(1, 2), weight, torch.tensor([5]))
    assert [float(x) for x in uniform] == pytest.approx([-4.574711, 4.574711], abs=1e-6)  # ln 97
    weight[3] = 100.0
    certain = head_logprobs(torch.ones(1, 2), weight, torch.tensor([3]))
    assert [float(x) for x in certain] == pytest.approx([0.0, 0.0], abs=1e-6)


def test_sampling_temperature_divides_the_logits() -> None:
    logits, targets = torch.tensor([[2.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 1])
    assert logprobs_from_logits(logits, targets, temperature=0.5).tolist() == pytest.approx(
        [-0.01815, -4.01815], abs=1e-5
    )
    assert logprobs_from_logits(logits, targets).tolist() == pytest.approx([-0.12693, -2.12693], abs=1e-5)
    # The same numbers from a head: identity weights make the states the logits.
    ours, _ = head_logprobs(logits, torch.eye(2), targets, temperature=0.5)
    assert ours.tolist() == pytest.approx([-0.01815, -4.01815], abs=1e-5)


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_a_temperature_that_is_not_positive_is_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature"):
        logprobs_from_logits(torch.zeros(1, 2), torch.tensor([0]), temperature=temperature)
    with pytest.raises(ValueError, match="temperature"):
        head_logprobs(torch.zeros(1, 2), torch.eye(2), torch.tensor([0]), temperature=temperature)


def test_softmax_of_bfloat16_logits_is_taken_in_float32() -> None:
    # In bfloat16 the log-softmax itself is off by 0.019 on average and 0.057 at most (a first ratio of 1.059).
    logits = (2 * torch.randn(256, 32_000, generator=torch.Generator().manual_seed(0))).bfloat16()
    targets = torch.arange(256)
    exact = logits.double().log_softmax(-1)[targets, targets]
    in_bfloat16 = logits.log_softmax(-1)[targets, targets].double()
    ours = logprobs_from_logits(logits, targets)
    assert ours.dtype == torch.float32
    assert (ours.double() - exact).abs().max() < 3e-6
    assert (in_bfloat16 - exact).abs().max() > 0.02


@pytest.mark.parametrize("autocast", [False, True], ids=["weights in bfloat16", "autocast"])
def test_a_bfloat16_head_rounds_its_logits_but_not_its_softmax(autocast: bool) -> None:
    hidden, weight, targets, _ = _inputs(torch.float32, bias=False)
    low = hidden.detach().bfloat16(), weight.detach().bfloat16()
    logits = low[0] @ low[1].T
    exact = logits.double().log_softmax(-1)[torch.arange(N), targets]
    given = (hidden, weight) if autocast else low
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        ours, entropy = head_logprobs(*given, targets)
        assert (ours.double() - exact).abs().max() < 2e-6
        assert entropy.dtype == torch.float32
        if autocast:  # float32 masters keep float32 gradients
            (ours.sum() + entropy.sum()).backward()
            assert hidden.grad.dtype == weight.grad.dtype == torch.float32


def test_the_gradient_of_a_bfloat16_head_does_not_drift_with_the_number_of_chunks() -> None:
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(4096, 16, generator=generator).bfloat16()
    weight = torch.randn(64, 16, generator=generator).bfloat16()
    targets = torch.randint(0, 64, (4096,), generator=generator)

    def gradient(dtype: torch.dtype, rows: int) -> Tensor:
        leaf = weight.to(dtype).clone().requires_grad_()
        head_logprobs(hidden.to(dtype), leaf, targets, chunk_bytes=4 * 64 * rows)[0].sum().backward()
        return leaf.grad.double()

    exact, many, one = gradient(torch.float64, 4096), gradient(torch.bfloat16, 8), gradient(torch.bfloat16, 4096)
    assert (many - exact).norm() < 1.5 * (one - exact).norm()


def test_no_token_at_all_gives_zero_gradients() -> None:
    hidden, weight, _, _ = _inputs(torch.float32, bias=False)
    logprobs, entropy = head_logprobs(hidden[:0], weight, torch.zeros(0, dtype=torch.long))
    assert logprobs.shape == entropy.shape == (0,)
    (logprobs.sum() + entropy.sum()).backward()
    assert weight.grad.abs().max() == 0


def test_an_unlikely_token_and_huge_logits_stay_finite() -> None:
    hidden = torch.tensor([[1.0]], requires_grad=True)
    weight = torch.tensor([[500.0], [-500.0], [0.0]])
    logprobs, entropy = head_logprobs(hidden, weight, torch.tensor([1]))
    assert [logprobs.item(), entropy.item()] == [-1000.0, 0.0]
    (logprobs + entropy).sum().backward()
    assert hidden.grad.item() == pytest.approx(-1000.0)  # w_target - sum p w
    assert math.isfinite(hidden.grad.item())


# --- memory ------------------------------------------------------------------------------------------------------

PROBE = """
import ctypes, sys, torch
from grpo_lightning.functional.logprobs import head_logprobs

CHUNK = 4 * 2**20

def status(key):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))

def extra(work):
    ctypes.CDLL(None).malloc_trim(0)  # what was freed would serve unseen
    before = status("VmRSS")
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak starts from here
    result = work()
    return (status("VmHWM") - before) / CHUNK, result

torch.set_num_threads(1)
hidden = torch.randn(1024, 512, requires_grad=True)
weight = (torch.randn(16_384, 512) / 20).requires_grad_()
targets = torch.randint(0, 16_384, (1024,))

def scores(tokens):
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=sys.argv[1] == "autocast"):
        return head_logprobs(hidden[:tokens], weight, targets[:tokens], chunk_bytes=CHUNK)

sum(scores(4)).sum().backward()  # torch's own start-up
hidden.grad = weight.grad = None
forward, (logprobs, entropy) = extra(lambda: scores(1024))
backward, _ = extra((logprobs.sum() + 0.1 * entropy.sum()).backward)
gradients = (hidden.grad.numel() + weight.grad.numel()) * 4 / CHUNK
print(forward, backward - gradients)
"""


@pytest.mark.integration  # a process of its own
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from Linux's /proc")
@pytest.mark.parametrize("dtype", ["float32", "autocast"])
def test_extra_memory_is_a_few_blocks_of_logits(dtype: str) -> None:
    # One float32 copy of these logits would be 16 blocks, a bfloat16 copy of the weight 4.
    root = Path(__file__).resolve().parents[3]
    result = subprocess.run(
        [sys.executable, "-c", PROBE, dtype],
        capture_output=True,
        text=True,
        check=True,
        cwd=root,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)},
    )
    forward, backward = map(float, result.stdout.split())
    assert forward <= 5
    assert backward <= 7.5
