"""Seconds to generate a rollout: every decoding step reads the weights once and the cache of every running sequence."""

from __future__ import annotations

import math

from experiments.scaling.architectures import Architecture
from experiments.scaling.hardware import Assumptions, Card, collective_seconds
from experiments.scaling.setting import Plan, Workload

POINTS = 64
"""At which the tail is computed."""


def sequences_at_once(model: Architecture, workload: Workload, plan: Plan, *, budget: float) -> float:
    """What the cache holds: a group's prompt once, and as many tokens of each completion as it has on average."""
    each = (workload.prompt / workload.group + workload.age) * model.cache_bytes(plan.number_bytes)
    return min(plan.max_sequences, budget / each)


def decode_seconds(
    model: Architecture, plan: Plan, *, running: float, context: float, card: Card, assumed: Assumptions
) -> float:
    """One token for each running sequence, of ``context`` tokens so far, on all of the engine's GPUs.

    Products with weights take as long as reading the weights or computing, attention as long as reading the cache or
    computing. Reading a shared prompt's keys for every sequence of its group is not saved: only their memory is.
    """
    low, gpus = plan.number_bytes, plan.engine_gpus
    reached, rate = card.bandwidth * assumed.bandwidth_share, card.flops * card.matmul
    products = 2 * running * (model.matrices + model.head)
    weights = max(low * (model.block_parameters + model.head) / reached, products / rate)
    pairs = 4 * model.layers * model.hidden * running * context
    attention = max(running * context * model.cache_bytes(low) / reached, pairs / rate)
    shared = 2 * 2 * model.layers * collective_seconds(running * model.hidden * low, gpus, card=card, assumed=assumed)
    own = assumed.decode_step_s + assumed.decode_sequence_s * running
    return (weights + attention) / gpus + shared + own


def generation_seconds(
    model: Architecture, workload: Workload, plan: Plan, *, budget: float, card: Card, assumed: Assumptions
) -> float:
    """A rollout on all engines at once: prompts, then a full batch while sequences wait, then its tail."""
    gpus = plan.serving if plan.engine == "server" else plan.gpus
    engines = max(1, gpus // plan.engine_gpus)
    mine = workload.completions / engines
    prompts = mine / workload.group * workload.prompt
    pairs = mine / workload.group * workload.prompt**2 / 2
    flops = 2 * model.matrices * prompts + 4 * model.layers * model.hidden * pairs
    prefill = flops / (card.flops * card.matmul * plan.engine_gpus)
    batch = min(mine, sequences_at_once(model, workload, plan, budget=budget))

    def step(running: float, context: float) -> float:
        return decode_seconds(model, plan, running=running, context=context, card=card, assumed=assumed)

    full = (mine - batch) * workload.mean / batch * step(batch, workload.prompt + workload.age)
    tail = 0.0
    for point in range(POINTS):
        age = (point + 0.5) * workload.limit / POINTS
        running = batch * math.exp(-age / workload.decay)
        # Below one sequence: the chance that any is left.
        tail += min(1.0, running) * step(max(1.0, running), workload.prompt + age)
    return prefill + full + tail * workload.limit / POINTS
