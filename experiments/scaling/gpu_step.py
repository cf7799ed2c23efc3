"""A training step of a whole model on one card: padded against packed, and FSDP2 over a single rank."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from transformers import Qwen2ForCausalLM

from experiments.scaling.architectures import MODELS, Architecture, config_of
from experiments.scaling.gpu_meter import Meter
from experiments.scaling.setting import Plan, Workload, backward_flops, forward_flops, work
from grpo_lightning.models.optimizers import ParameterGroup, make_optimizer
from grpo_lightning.models.policy import Policy
from grpo_lightning.models.sharding import shard
from grpo_lightning.rollout.windows import pad_rows
from grpo_lightning.types import SequenceBatch

TINY = Architecture("tiny", 2, 32, 4, 2, 64, 64, True)


def architecture(name: str) -> Architecture:
    return next(model for model in (*MODELS, TINY) if model.name == name)


def made_policy(model: Architecture, meter: Meter, *, packing: bool) -> Policy:
    """Random float32 weights, made on the device."""
    torch.manual_seed(0)
    with meter.device:
        network = Qwen2ForCausalLM(config_of(model))
    return Policy(network, packing=packing).train()


def made_batch(meter: Meter, *, sizes: dict[str, Any], vocabulary: int) -> SequenceBatch:
    """Groups of one prompt each; lengths are those of ``Workload``, in an order that mixes them."""
    workload = Workload(**sizes)
    lengths = list(workload.lengths(workload.completions))
    random.Random(0).shuffle(lengths)
    words = torch.Generator().manual_seed(0)
    asked = torch.randint(2, vocabulary, (workload.prompts, workload.prompt), generator=words).tolist()
    prompts = [prompt for prompt in asked for _ in range(workload.group)]
    completions = [torch.randint(2, vocabulary, (length,), generator=words).tolist() for length in lengths]
    return pad_rows(prompts, completions, pad_token_id=0).to(meter.device)


def packing_part(meter: Meter, sizes: dict[str, Any]) -> dict[str, Any]:
    """Forward and backward of one micro-batch under bf16 autocast, one layout after the other.

    Packing shares a prompt among neighbours: in ``packed`` rows of different groups take turns.
    ``model flops`` are those that the sequences need when a prompt is computed for each, without padding: the same for
    all layouts, so that their rates can be compared.
    """
    model = architecture(sizes["model"])
    batch = made_batch(meter, sizes=sizes["batch"], vocabulary=model.vocabulary)
    done = work(Workload(**sizes["batch"]), Plan(gpus=1, layout="packed"))
    flops = forward_flops(model, done) + backward_flops(model, done, Plan(gpus=1))
    found: dict[str, Any] = {
        "tokens": int(batch.sequence_lengths.sum()),
        "padded tokens": batch.input_ids.numel(),
        "model flops": flops,
    }
    scores: dict[str, torch.Tensor] = {}
    apart = torch.arange(len(batch), device=meter.device).view(-1, sizes["batch"]["group"]).T.flatten()
    layouts = {"padded": (batch, False), "packed": (batch.rows(apart), True), "shared": (batch, True)}
    for name, (rows, packing) in layouts.items():

        def one(name: str = name, rows: SequenceBatch = rows, packing: bool = packing) -> dict[str, Any]:
            policy = made_policy(model, meter, packing=packing)
            used, scores[name] = _forward_backward(policy, rows, meter)
            return used | {"flops": flops / used["seconds"]}

        found[name] = meter.if_it_fits(one)
        meter.free()
    if {"padded", "shared"} <= set(scores):
        found["largest difference of log-probabilities"] = float((scores["padded"] - scores["shared"]).abs().max())
    return found


def _forward_backward(policy: Policy, batch: SequenceBatch, meter: Meter) -> tuple[dict[str, Any], torch.Tensor]:
    """Seconds and bytes, and the log-probabilities in float32."""

    def run() -> None:
        policy.zero_grad(set_to_none=True)
        autocast_loss(policy, batch, meter).backward()

    seconds = meter.seconds(run, repeats=3)
    policy.zero_grad(set_to_none=True)
    used = {"seconds": seconds, **meter.peak(run)}
    with torch.no_grad():
        return used, policy(batch).logprobs


def autocast_loss(policy: torch.nn.Module, batch: SequenceBatch, meter: Meter) -> torch.Tensor:
    with torch.autocast(meter.device.type, dtype=torch.bfloat16):
        return policy(batch).logprobs.sum()


def fsdp2_part(meter: Meter, sizes: dict[str, Any]) -> dict[str, Any]:
    """Whole training steps (forward, backward, AdamW) of one rank: autocast, and FSDP2 with its own mixed precision."""
    model = architecture(sizes["fsdp2"])
    batch = made_batch(meter, sizes=sizes["batch"], vocabulary=model.vocabulary)
    found: dict[str, Any] = {"autocast": _steps(made_policy(model, meter, packing=True), batch, meter, sharded=False)}
    meter.free()
    with one_rank(meter):
        mesh = init_device_mesh(meter.device.type, (1,))
        policy = shard(made_policy(model, meter, packing=True), mesh, bfloat16=True)
        found["fsdp2"] = _steps(policy, batch, meter, sharded=True)
        del policy
    return found


def _steps(policy: Policy, batch: SequenceBatch, meter: Meter, *, sharded: bool) -> dict[str, Any]:
    optimizer = make_optimizer([ParameterGroup(policy)], None, lr=1e-6)
    before = torch.cuda.memory_allocated() if meter.on_gpu else None

    def run() -> None:
        loss = policy(batch).logprobs.sum() if sharded else autocast_loss(policy, batch, meter)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    run()  # makes Adam's moments
    return {"weights and batch": before, "seconds": meter.seconds(run, repeats=3), **meter.peak(run)}


@contextmanager
def one_rank(meter: Meter) -> Iterator[None]:
    """A process group of this process alone."""
    store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True)
    dist.init_process_group("nccl" if meter.on_gpu else "gloo", store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
