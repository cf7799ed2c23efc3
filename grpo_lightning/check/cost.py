"""An estimate of a rank's memory and of a rollout's seconds, from the model's sizes and two measurements."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import lightning as L
import torch
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy, ModelParallelStrategy

from grpo_lightning.check.geometry import Plan
from grpo_lightning.check.machine import memory
from grpo_lightning.functional.logprobs import CHUNK_BYTES, CPU_CHUNK_BYTES
from grpo_lightning.models.flops import Group, Shape, forward_flops, peak_flops
from grpo_lightning.models.size import count_weights, in_words, state_bytes

REACHED = 0.4
"""Share of the device's peak that products reach in training: 33 to 58% are published for GPUs (torchtitan)."""
LAUNCHES, LAUNCH_SECONDS = 50, 6e-6
"""Kernels of a layer's forward in eager mode, and what each takes however small it is."""
OPTIMIZER_BYTES = 88
"""Read and written for each trained weight by AdamW and clipping."""
AT_ONCE = 256
"""Completions that are generated at a time where the engine does not say."""
ASSUMED_MEMORY = (
    "An estimate: every completion as long as it may be, transformers' eager layers, at the peak of a "
    "backward with the sampler still holding its memory; the runtime's own memory and fragments come on top."
)
ASSUMED_TIME = (
    f"A rough guess: every completion as long as it may be, products at {REACHED:.0%} of the "
    "device's peak, weights and keys read at the rate at which it copies memory; rewards, syncing and ranks' exchanges "
    "are not counted."
)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Of the model that is trained, and how it lies on a rank."""

    weights: int
    trained: int
    shape: Shape | None
    """None for a model of another layout than Llama's: what depends on it is left out."""
    stored: int
    """Bytes of a weight where it is trained."""
    computed: int
    """Bytes of a number where it is computed with, by trainer and sampler."""
    shards: int
    """Ranks that a copy of the model lies on."""


def sizes_of(trainer: L.Trainer, model: Any) -> Sizes:
    """Read off the model's configuration; no weights are loaded."""
    counted = count_weights(model.policy_path, adapter=model.adapter, trust_remote_code=model.trust_remote_code)
    low = str(trainer.precision).startswith("bf16") or model.dtype_name == "bfloat16"
    try:
        shape = Shape.of(model.model_config)
    except AttributeError:
        shape = None
    sharded = isinstance(trainer.strategy, ModelParallelStrategy | FSDPStrategy)
    return Sizes(
        weights=counted["all"],
        trained=counted["trained"],
        shape=shape,
        stored=2 if model.dtype_name == "bfloat16" or trainer.precision == "bf16-true" else 4,
        computed=2 if low else 4,
        shards=trainer.world_size if sharded else 1,
    )


def training_memory(sizes: Sizes, trainer: L.Trainer, model: Any, *, tokens: int) -> dict[str, float]:
    """Bytes of a rank at the peak of a micro-batch's backward, by what holds them.

    Args:
        sizes: of the model.
        trainer: with its strategy.
        model: that is trained.
        tokens: of the largest micro-batch.
    """
    adapter, state = model.adapter is not None, state_bytes(model.optimizer_factory)
    sharded = sizes.shards > 1
    parts = {
        "weights": (sizes.stored * sizes.weights + 4 * sizes.trained * adapter) / sizes.shards,
        "gradients": sizes.stored * sizes.trained / sizes.shards,
        "optimizer's state": state * sizes.trained / sizes.shards,
    }
    if getattr(model, "needs_reference", False) and not adapter:
        parts["reference"] = sizes.stored * sizes.weights / sizes.shards
    if (critic := getattr(model, "critic_path", None)) is not None:
        own = count_weights(critic, trust_remote_code=model.trust_remote_code)["all"]
        parts["critic"] = (8 + state) * own / sizes.shards
    if sizes.computed < sizes.stored and not adapter:
        # Under autocast of all layers, till the forward's end; in shards, of those that are gathered at a time.
        layers = sizes.shape.layers if sizes.shape else 1
        parts["copies to compute with"] = sizes.computed * sizes.weights * (2 / layers if sharded else 1)
    if isinstance(trainer.strategy, DDPStrategy):
        parts["DDP's buckets"] = 4.0 * sizes.trained
    chunk = CPU_CHUNK_BYTES if trainer.strategy.root_device.type == "cpu" else CHUNK_BYTES
    parts["logits, in blocks"] = 4.0 * chunk
    if sizes.shape is not None:
        parts["logits, in blocks"] = 4.0 * min(chunk, 4 * tokens * sizes.shape.vocabulary)
        checkpointing = model.gradient_checkpointing
        kept = kept_bytes(sizes.shape, computed=sizes.computed, stored=sizes.stored, checkpointing=checkpointing)
        parts["activations"] = tokens * kept
    return parts


def kept_bytes(shape: Shape, *, computed: int, stored: int, checkpointing: bool) -> float:
    """What the backward of one token needs, all layers together, by transformers' eager layers.

    Of a layer, in numbers of the model's width H, its keys' and values' K and its MLP's I: both norms' inputs in
    float32 (2 H); normalized inputs, outputs of both parts, queries and what the heads give (6 H); keys and values
    (2 K); gate, activated gate, up and their product (4 I). Under autocast the residual stream is float32 (2 H more).
    Gradient checkpointing keeps each layer's input, one layer's numbers and their gradients.
    """
    width, keys = shape.hidden, shape.key_heads * shape.head_size
    layer = 8 * width + computed * (6 * width + 2 * keys + 4 * shape.mlp)
    layer += (stored - computed) * 2 * width
    layers = shape.layers * computed * width + 2 * layer if checkpointing else shape.layers * layer
    return layers + 2 * (4 + computed) * width


def sampler_memory(sizes: Sizes, engine: Any, *, device: torch.device, plan: Plan) -> dict[str, float]:
    """Bytes that the engine holds on a rank while it generates.

    Args:
        sizes: of the model.
        engine: of the rollouts.
        device: of the rank.
        plan: of the run.
    """
    if device.type == "cuda" and (share := getattr(engine, "memory_share", None)) is not None:
        return {"sampler (its memory_share)": share * memory(device)}
    parts = {"sampler's weights": float(sizes.computed * sizes.weights)}
    if (gib := getattr(engine, "kv_cache_gib", None)) is not None:
        parts["sampler's keys and values"] = gib * 2**30
    elif sizes.shape is not None:
        running = _running(engine, plan)
        length = plan.prompt_length + plan.completion_limit
        parts["sampler's keys and values"] = running * length * cache_bytes(sizes.shape, sizes.computed)
    return parts


def cache_bytes(shape: Shape, number: int) -> int:
    """Keys and values of one token in all layers, of numbers of so many bytes."""
    return 2 * shape.layers * shape.key_heads * shape.head_size * number


def _running(engine: Any, plan: Plan) -> float:
    """Completions that a rank generates at a time."""
    most = getattr(engine, "max_sequences", None) or getattr(engine, "batch_size", None) or AT_ONCE
    return min(most, plan.completions / plan.ranks)


def seconds(sizes: Sizes, model: Any, plan: Plan, *, engine: Any, device: torch.device) -> dict[str, float]:
    """Of one rollout, by phase, if every completion is as long as it may be; empty if the model's layout is unknown.

    Args:
        sizes: of the model.
        model: that is trained.
        plan: of the run; of a supervised one, its optimizer step.
        engine: of the rollouts; None if nothing is generated.
        device: of the rank.
    """
    shape = sizes.shape
    if shape is None:
        return {}
    rate = REACHED * peak_flops(device, torch.bfloat16 if sizes.computed == 2 else torch.float32)
    moved = bandwidth(device)
    group = Group(round(plan.prompt_length), (plan.completion_limit,) * plan.group_size)
    forward = forward_flops(shape, [group]) * plan.prompts / plan.ranks / rate
    launches = shape.layers * LAUNCHES * LAUNCH_SECONDS
    again = 3 + model.gradient_checkpointing
    found = {}
    if engine is not None:
        running = _running(engine, plan)
        rounds = math.ceil(plan.completions / plan.ranks / running)
        cache = running * (plan.prompt_length + plan.completion_limit / 2) * cache_bytes(shape, sizes.computed)
        each = max((sizes.computed * sizes.weights + cache) / moved, launches)
        found["generate"] = max(rounds * plan.completion_limit * each, forward)
    scored = getattr(model, "needs_reference", False) + (plan.steps > 1)
    if scored:
        found["score"] = scored * max(forward, launches)
    found["learn"] = plan.passes * max(again * forward, plan.windows * 3 * launches)
    found["optimizer"] = plan.steps * OPTIMIZER_BYTES * sizes.trained / sizes.shards / moved
    return found


def ranks_on(trainer: L.Trainer, device: torch.device) -> int:
    """Ranks that share the memory of one device."""
    return 1 if device.type == "cuda" else trainer.num_devices


def table(parts: dict[str, float], *, total: float, ranks: int) -> str:
    """Memory by part, its sum, and whether the device has so much.

    Args:
        parts: bytes of a rank.
        total: bytes of the device.
        ranks: that share it.
    """
    needed = sum(parts.values())
    lines = [f"{name:<26} {in_words(size):>9}" for name, size in parts.items()]
    lines.append(f"{'together, of a rank':<26} {in_words(needed):>9}")
    verdict = "" if needed * ranks <= total else "  ! more than there is"
    lines.append(f"{'device' if ranks == 1 else f'machine, for {ranks} ranks':<26} {in_words(total):>9}{verdict}")
    return "\n".join(lines)


def bandwidth(device: torch.device) -> float:
    """Bytes a second that the device reads and writes when it copies 64 MB: the best of three."""
    one = torch.zeros(2**24, device=device)
    other = torch.empty_like(one)
    best = math.inf
    for _ in range(4):  # the first touches memory that is not there yet
        start = time.perf_counter()
        other.copy_(one)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start)
    return 2 * 4 * len(one) / best


def clock(value: float) -> str:
    """Seconds for a reader."""
    for unit, name in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if value >= 2 * unit:
            return f"{value / unit:.3g} {name}"
    return f"{value:.2g} s"
