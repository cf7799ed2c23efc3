"""Bytes of one GPU: what stays, what training adds, what generation adds."""

from __future__ import annotations

from experiments.scaling.architectures import Architecture
from experiments.scaling.hardware import Assumptions, Card
from experiments.scaling.setting import Plan, Workload, trained_parameters, work

LEAST_SEQUENCES = 16
"""An engine whose cache holds fewer completions of full length is no engine."""


def resident_bytes(model: Architecture, workload: Workload, plan: Plan, *, card: Card) -> dict[str, float]:
    """What a trainer's GPU holds all the time: weights in float32, Adam's two moments, the reference.

    An adapter lies on bfloat16 weights, and the reference is the policy without it.
    """
    shards, trained = plan.shards(card.per_host), trained_parameters(model, plan)
    frozen = plan.lora is not None
    weights = (2 * model.parameters + 4 * trained) if frozen else 4 * model.parameters
    second = workload.reference and not frozen
    return {
        "weights": weights / shards,
        "optimizer": 8 * trained / shards,
        "reference": 4 * model.parameters / shards if second else 0.0,
    }


def training_bytes(
    model: Architecture, workload: Workload, plan: Plan, *, card: Card, assumed: Assumptions
) -> dict[str, float]:
    """At the peak of a micro-batch's backward."""
    trained = trained_parameters(model, plan)
    return resident_bytes(model, workload, plan, card=card) | {
        "gradients": 4 * trained / plan.shards(card.per_host),
        "copies": copies(model, plan),
        "activations": activations(model, workload, plan) + assumed.chunk_bytes,
        "context": assumed.context_bytes,
    }


def copies(model: Architecture, plan: Plan) -> float:
    """Weights in the compute dtype, and gradients on their way to where they stay.

    Single and DDP: autocast keeps a copy of every layer's weights till the forward's end (the fused head makes none);
    the head's gradient of one micro-batch is a tensor of its own; DDP's buckets are as large as the gradients. FSDP2:
    two layers and the root gathered, and their gradients in the compute dtype and in float32.
    """
    low, frozen, layer = plan.number_bytes, plan.lora is not None, model.block_parameters / model.layers
    if plan.strategy in ("fsdp2", "hsdp"):
        at_once = 2 * layer + model.root_parameters
        return low * at_once + (0.0 if frozen else (low + 4) * at_once)
    copied = 0.0 if frozen or low == 4 else low * model.block_parameters
    buckets = 4 * trained_parameters(model, plan) if plan.strategy == "ddp" else 0.0
    return copied + buckets + (0.0 if frozen else 4 * model.head)


def activations(model: Architecture, workload: Workload, plan: Plan) -> float:
    """Of one micro-batch: what all layers keep, or each layer's input, one layer's and as much for its gradients."""
    done, low = work(workload, plan), plan.number_bytes
    longest = workload.prompt + workload.limit
    tokens = min(max(plan.micro_batch_tokens, longest), max(done.tokens / plan.windows, longest))
    autocast = plan.strategy in ("single", "ddp") and plan.lora is None
    kept, width = model.kept_bytes(low, autocast=autocast), model.hidden
    layers = model.layers * low * width + 2 * kept if plan.checkpointing else model.layers * kept
    return tokens * (layers + 2 * (4 + low) * width)


def engine_bytes(
    model: Architecture, workload: Workload, plan: Plan, *, card: Card, assumed: Assumptions
) -> float | None:
    """What a GPU has for the engine's weights and cache; None if the trainer does not fit beside, or in turn."""
    usable = card.memory * (1 - assumed.reserve)
    training = sum(training_bytes(model, workload, plan, card=card, assumed=assumed).values())
    if training > usable:
        return None
    if plan.engine == "server":
        return usable - assumed.context_bytes
    resident = sum(resident_bytes(model, workload, plan, card=card).values()) + assumed.context_bytes
    return usable - (resident if plan.sleep else training)


def cache_budget(
    model: Architecture, workload: Workload, plan: Plan, *, card: Card, assumed: Assumptions
) -> float | None:
    """Bytes that one engine has for keys and values on all its GPUs; None if the plan does not fit in memory."""
    given = engine_bytes(model, workload, plan, card=card, assumed=assumed)
    budget = 0.0 if given is None else given * plan.engine_gpus - plan.number_bytes * model.parameters
    needed = LEAST_SEQUENCES * (workload.prompt + workload.limit) * model.cache_bytes(plan.number_bytes)
    return budget if budget >= needed else None
