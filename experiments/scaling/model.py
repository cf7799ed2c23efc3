"""One GRPO step on paper: seconds by phase and bytes per GPU, from the model's numbers and the card's data sheet."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.scaling.architectures import Architecture
from experiments.scaling.generation import generation_seconds, sequences_at_once
from experiments.scaling.hardware import Assumptions, Card, collective_seconds
from experiments.scaling.memory import cache_budget, training_bytes
from experiments.scaling.setting import Plan, Work, Workload, backward_flops, forward_flops, trained_parameters, work


@dataclass(frozen=True)
class Step:
    """One rollout and all that is learned from it."""

    phases: dict[str, float]
    """Seconds: generate, sync, reward, score, forward, backward, communication, optimizer, glue."""
    seconds: float
    """Of the step: the phases' sum; with a server engine, generation and the rest run side by side."""
    memory: dict[str, float]
    """Bytes of a trainer's GPU at its peak, by part."""
    sequences: float
    """That one engine runs at a time."""


def step(
    model: Architecture, workload: Workload, plan: Plan, *, card: Card, assumed: Assumptions | None = None
) -> Step | None:
    """The step that ``plan`` makes of ``workload``; None if it does not fit in the cards' memory."""
    assumed = assumed or Assumptions()
    budget = cache_budget(model, workload, plan, card=card, assumed=assumed)
    if budget is None:
        return None
    done = work(workload, plan)
    forward, backward = (compute_seconds(model, done, plan, card=card, assumed=assumed, backward=b) for b in (0, 1))
    exposed = {
        "forward": max(0.0, gather_seconds(model, done, plan, card=card, assumed=assumed) - assumed.overlap * forward),
        "backward": exchange_seconds(model, done, plan, backward, card=card, assumed=assumed),
    }
    passes = (plan.windows > 1) + workload.reference
    phases = {
        "generate": generation_seconds(model, workload, plan, budget=budget, card=card, assumed=assumed)
        + (assumed.wake_s if plan.sleep and plan.engine == "colocated" else 0.0),
        "sync": sync_seconds(model, plan, card=card, assumed=assumed),
        "reward": assumed.reward_s * workload.completions / plan.gpus,
        "score": passes * (forward + exposed["forward"]),
        "forward": forward,
        "backward": backward,
        "communication": sum(exposed.values()),
        "optimizer": plan.windows * optimizer_seconds(model, plan, card=card, assumed=assumed),
        "glue": assumed.glue_s * (1 + plan.windows),
    }
    seconds = sum(phases.values())
    if plan.engine == "server":
        sampling = phases["generate"] + phases["reward"]
        seconds = max(sampling, seconds - sampling - phases["sync"]) + phases["sync"]
    memory = training_bytes(model, workload, plan, card=card, assumed=assumed)
    return Step(phases, seconds, memory, sequences_at_once(model, workload, plan, budget=budget))


def compute_seconds(
    model: Architecture, done: Work, plan: Plan, *, card: Card, assumed: Assumptions, backward: bool
) -> float:
    """Arithmetic, but never less than Python needs to launch the kernels."""
    flops = backward_flops(model, done, plan) if backward else forward_flops(model, done)
    rounds = 2 + plan.checkpointing if backward else 1
    launches = done.micro_batches * model.layers * assumed.kernels_forward * rounds
    return max(flops / (card.flops * card.matmul), launches * assumed.kernel_s)


def gather_seconds(model: Architecture, done: Work, plan: Plan, *, card: Card, assumed: Assumptions) -> float:
    """Of sharded weights in the compute dtype, layer by layer and the root, once for each micro-batch's forward."""
    ranks = plan.shards(card.per_host)
    layer, low = model.block_parameters / model.layers, plan.number_bytes
    layers = model.layers * collective_seconds(low * layer, ranks, card=card, assumed=assumed)
    return done.micro_batches * (
        layers + collective_seconds(low * model.root_parameters, ranks, card=card, assumed=assumed)
    )


def exchange_seconds(
    model: Architecture, done: Work, plan: Plan, backward: float, *, card: Card, assumed: Assumptions
) -> float:
    """What of the backward's collectives is not hidden behind its ``backward`` seconds of computing.

    FSDP2 gathers every layer once more (the root has stayed) and scatters float32 sums of gradients, for each
    micro-batch. DDP adds gradients up once for each optimizer step, behind the backward of its last micro-batch.
    """
    trained, ranks = trained_parameters(model, plan), plan.shards(card.per_host)
    between = 0.0
    if plan.strategy in ("fsdp2", "hsdp"):
        layer = model.block_parameters / model.layers
        each = collective_seconds(plan.number_bytes * layer, ranks, card=card, assumed=assumed)
        each += collective_seconds(4 * trained / (model.layers + 1), ranks, card=card, assumed=assumed)
        seconds = done.micro_batches * model.layers * each
        if plan.strategy == "hsdp":  # each rank's share, among its peers on the other hosts
            hosts = plan.trainers / ranks
            between = done.micro_batches * 2 * 4 * trained * (hosts - 1) / hosts / card.network / assumed.link_share
        return max(0.0, seconds + between - assumed.overlap * backward)
    reduced = 2 * collective_seconds(4 * trained, plan.trainers, card=card, assumed=assumed)
    return plan.windows * max(0.0, reduced - assumed.overlap * backward / done.micro_batches)


def optimizer_seconds(model: Architecture, plan: Plan, *, card: Card, assumed: Assumptions) -> float:
    """One step of AdamW and clipping, which read and write memory."""
    own = trained_parameters(model, plan) / plan.shards(card.per_host)
    return assumed.optimizer_bytes * own / (card.bandwidth * assumed.bandwidth_share)


def sync_seconds(model: Architecture, plan: Plan, *, card: Card, assumed: Assumptions) -> float:
    """New weights for the engine: shards gathered tensor by tensor as they are stored, then copied in its dtype.

    A server engine is sent them over the network, or over links within one host.
    """
    stored = 2 if plan.lora is not None else 4
    each = stored * model.parameters / model.tensors
    gathered = model.tensors * collective_seconds(each, plan.shards(card.per_host), card=card, assumed=assumed)
    copied = (stored + plan.number_bytes) * model.parameters / (card.bandwidth * assumed.bandwidth_share)
    sent = 0.0
    if plan.engine == "server":
        way = card.network if plan.gpus > card.per_host else card.link
        sent = plan.number_bytes * model.parameters / way / assumed.link_share
    return gathered + copied + sent + model.tensors * assumed.tensor_sync_s
