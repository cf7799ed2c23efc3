"""Which settings to pick: all plans of a grid are tried, and of those that fit the fastest is taken."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.scaling.architectures import Architecture
from experiments.scaling.hardware import Assumptions, Card
from experiments.scaling.model import Step, step
from experiments.scaling.setting import Plan, Workload

MICRO_BATCHES = (4096, 8192, 16_384, 32_768, 65_536)
RANK = 16
"""Of an adapter, as in configs/adapter/lora.yaml."""
NEAR = 1.02
"""Plans within 2% of the fastest count as fast, and the plainest of them is taken."""
SIMPLE = ("single", "ddp", "fsdp2", "hsdp")


def built_plans(gpus: int, *, lora: int | None) -> Iterator[Plan]:
    """What the product can do today, on so many GPUs."""
    for strategy in ("single",) if gpus == 1 else ("ddp", "fsdp2"):
        for checkpointing in (False, True):
            for tokens in MICRO_BATCHES:
                for sleep in (False, True):
                    yield Plan(
                        gpus=gpus,
                        strategy=strategy,
                        checkpointing=checkpointing,
                        lora=lora,
                        micro_batch_tokens=tokens,
                        sleep=sleep,
                    )


def other_plans(gpus: int, *, per_host: int) -> Iterator[Plan]:
    """What it cannot: engines over several GPUs, a server engine, FSDP2 within hosts only."""
    strategies = ("fsdp2", "hsdp") if gpus > per_host else ("ddp", "fsdp2") if gpus > 1 else ("single",)
    widths = [width for width in (1, 2, 4, 8) if width <= min(gpus, per_host)]
    eighths = sorted({gpus * part // 8 for part in range(1, 8)} - {0, gpus})
    for width in widths:
        for serving in (0, *(number for number in eighths if number % width == 0)):
            for strategy in strategies:
                for tokens, checkpointing in ((4096, False), (8192, True), (32_768, True)):
                    plan = Plan(
                        gpus=gpus,
                        strategy=strategy if gpus - serving > 1 else "single",
                        checkpointing=checkpointing,
                        micro_batch_tokens=tokens,
                        engine="server" if serving else "colocated",
                        serving=serving,
                        engine_gpus=width,
                        sleep=not serving,
                    )
                    if not plan.built:
                        yield plan


def best(
    model: Architecture, workload: Workload, plans: Iterator[Plan], *, card: Card, assumed: Assumptions | None = None
) -> tuple[Plan, Step] | None:
    """The fastest plan that fits, or one as good as it and plainer; None if none fits."""
    found = [(plan, step(model, workload, plan, card=card, assumed=assumed)) for plan in plans]
    fitting = [(plan, made) for plan, made in found if made is not None and plan.trainers <= workload.prompts]
    if not fitting:
        return None
    fastest = min(made.seconds for _, made in fitting)
    return min((pair for pair in fitting if pair[1].seconds <= NEAR * fastest), key=lambda pair: _effort(pair[0]))


def _effort(plan: Plan) -> tuple[int, ...]:
    return (
        plan.serving,
        plan.engine_gpus,
        SIMPLE.index(plan.strategy),
        plan.checkpointing,
        plan.sleep,
        plan.micro_batch_tokens,
    )


def recommended(
    model: Architecture, workload: Workload, gpus: int, *, card: Card, assumed: Assumptions | None = None
) -> tuple[Plan, Step] | None:
    """Of what is built: the whole model where it fits, else an adapter."""
    for lora in (None, RANK):
        if chosen := best(model, workload, built_plans(gpus, lora=lora), card=card, assumed=assumed):
            return chosen
    return None
