"""The model against figures that others have published for GPUs."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from experiments.scaling.architectures import LLAMA_3_8B, LLAMA_3_70B, Architecture
from experiments.scaling.generation import decode_seconds
from experiments.scaling.hardware import CARDS, Assumptions, Card
from experiments.scaling.model import compute_seconds, exchange_seconds, gather_seconds, optimizer_seconds
from experiments.scaling.setting import Plan, Work

TORCHTITAN = "torchtitan, docs/performance.md"
SWEEP = "johnmusgrave.com, vLLM throughput-latency sweep on A100"
BENCH = "yobitelcomm.github.io/bench, concurrency sweep"
A100_40 = dataclasses.replace(CARDS["A100"], name="A100-40", bandwidth=1.555e12, memory=40e9)


class Check(NamedTuple):
    """One figure."""

    what: str
    published: float
    predicted: float
    unit: str
    source: str


def checks(assumed: Assumptions | None = None) -> list[Check]:
    """Training rates of FSDP2, and seconds of vLLM's decoding steps, of Llama 3 (3.1 has the same numbers)."""
    assumed = assumed or Assumptions()
    h100, a100, small, large = CARDS["H100"], CARDS["A100"], LLAMA_3_8B, LLAMA_3_70B
    rates = (
        ("8B on 8 H100, 2 rows", 5762, small, h100, 8, 2, False),
        ("8B on 64 A100, half the layers recomputed", 2904, small, a100, 64, 1, False),
        ("70B on 64 A100, all recomputed", 331, large, a100, 64, 1, True),
    )
    found = [
        Check(f"training, {what}", seen, training_rate(*rest, assumed=assumed), "tokens/s a GPU", TORCHTITAN)
        for what, seen, *rest in rates
    ]
    for what, seen, card, running, context, source in (
        ("H100, 1 sequence", 6.48, h100, 1, 512, BENCH),
        ("H100, 4 sequences", 6.59, h100, 4, 512, BENCH),
        ("A100 40 GB, 1 sequence", 1000 / 75, A100_40, 1, 1088, SWEEP),
    ):
        plan = Plan(gpus=1)
        taken = decode_seconds(small, plan, running=running, context=context, card=card, assumed=assumed)
        found.append(Check(f"decoding, 8B on {what}", seen, 1000 * taken, "ms a token", source))
    return found


def training_rate(
    model: Architecture, card: Card, gpus: int, rows: int, checkpointing: bool, *, assumed: Assumptions
) -> float:
    """Tokens a second and GPU with ``rows`` sequences of 8,192 tokens each, all scored."""
    length = 8192
    plan = Plan(gpus=gpus, strategy="fsdp2", checkpointing=checkpointing, layout="packed")
    done = Work(rows * length, rows * length, rows * length**2 / 2, 1)
    forward = compute_seconds(model, done, plan, card=card, assumed=assumed, backward=False)
    backward = compute_seconds(model, done, plan, card=card, assumed=assumed, backward=True)
    gathering = max(0.0, gather_seconds(model, done, plan, card=card, assumed=assumed) - assumed.overlap * forward)
    exchange = exchange_seconds(model, done, plan, backward, card=card, assumed=assumed)
    step = optimizer_seconds(model, plan, card=card, assumed=assumed)
    return rows * length / (forward + backward + gathering + exchange + step)
