"""The model against this machine's CPU: python -m experiments.scaling.calibrate

Rates of the machine are measured (products, memory, one small operation), then phases of small models are predicted
from them by the functions that predict GPUs, and measured. Seconds are CPU seconds of one thread, so that other work on
the machine does not count; it still slows memory and caches.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2ForCausalLM

from experiments.machine import machine, versions
from experiments.ppo.costs import saved_for_backward, storages
from experiments.scaling.architectures import Architecture, config_of
from experiments.scaling.generation import decode_seconds
from experiments.scaling.hardware import Assumptions, Card
from experiments.scaling.model import compute_seconds, optimizer_seconds
from experiments.scaling.setting import Plan, Work
from grpo_lightning.engines import TransformersEngine
from grpo_lightning.engines.base import ModelSpec, Sampling
from grpo_lightning.models.clipping import clip_grad_norm
from grpo_lightning.models.optimizers import ParameterGroup, make_optimizer
from grpo_lightning.models.policy import Policy
from grpo_lightning.models.weights import named_weights
from grpo_lightning.rollout.windows import pad_rows
from grpo_lightning.types import SequenceBatch

RECORD = Path(__file__).resolve().parent / "calibration.json"
SIZES = (
    Architecture("1M", 4, 128, 4, 2, 384, 4096, True),
    Architecture("6M", 6, 256, 4, 2, 768, 8192, True),
    Architecture("25M", 8, 384, 6, 2, 1024, 32_768, True),
    Architecture("46M", 10, 512, 8, 2, 1536, 32_768, True),
)
ROWS, PROMPT, COMPLETION = 16, 32, 32
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
REPEATS = 3
AUTOCAST, AS_FSDP2 = "kept bytes, autocast", "kept bytes, as FSDP2"


def seconds_of(call: Callable[[], Any], *, repeats: int = REPEATS) -> float:
    """CPU seconds, the median of ``repeats`` after one that warms up."""
    call()
    return statistics.median(_once(call) for _ in range(repeats))


def _once(call: Callable[[], Any]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


# --- the machine -------------------------------------------------------------------------------------------------


def measured_rates() -> dict[str, float]:
    """FLOP/s of products in both dtypes, bytes/s of copying in memory, seconds of one operation on one number."""
    found = {}
    for name, dtype in DTYPES.items():
        square = torch.randn(768, 768).to(dtype)
        found[name] = 2 * 768**3 / seconds_of(lambda square=square: square @ square)
    large, target = torch.ones(2**25), torch.empty(2**25)
    found["bandwidth"] = 2 * 4 * 2**25 / seconds_of(lambda: target.copy_(large))
    one = torch.ones(1)
    found["operation"] = seconds_of(lambda: [one + 1 for _ in range(10_000)]) / 10_000
    return found


def card_of(rates: dict[str, float], dtype: str) -> Card:
    """This machine as a card that reaches its own peak."""
    return Card(
        name="CPU",
        flops=rates[dtype],
        bandwidth=rates["bandwidth"],
        memory=0.0,
        link=1.0,
        network=1.0,
        matmul=1.0,
        source="measured",
    )


# --- one size ----------------------------------------------------------------------------------------------------


def predicted(model: Architecture, rates: dict[str, float], dtype: str) -> dict[str, float]:
    """Seconds of the phases."""
    card, low = card_of(rates, dtype), DTYPES[dtype].itemsize
    assumed = Assumptions(
        bandwidth_share=1.0,
        kernel_s=rates["operation"],
        decode_step_s=model.layers * Assumptions().kernels_forward * rates["operation"],
        decode_sequence_s=0.0,
    )
    plan = Plan(gpus=1, number_bytes=low, layout="padded")
    length = PROMPT + COMPLETION
    done = Work(ROWS * length, ROWS * COMPLETION, ROWS * length**2 / 2, 1)
    prompts = Work(ROWS * PROMPT, ROWS, ROWS * PROMPT**2 / 2, 1)
    each = decode_seconds(model, plan, running=ROWS, context=PROMPT + COMPLETION / 2, card=card, assumed=assumed)
    return {
        "forward": compute_seconds(model, done, plan, card=card, assumed=assumed, backward=False),
        "backward": compute_seconds(model, done, plan, card=card, assumed=assumed, backward=True),
        "optimizer": optimizer_seconds(model, plan, card=card, assumed=assumed),
        "generate": compute_seconds(model, prompts, plan, card=card, assumed=assumed, backward=False)
        + (COMPLETION - 1) * each,
    }


def measured(model: Architecture, dtype: str) -> dict[str, float]:
    """Seconds of the phases, and bytes that the forward keeps: under autocast, and with weights in the dtype."""
    torch.manual_seed(0)
    policy = Policy(Qwen2ForCausalLM(config_of(model)))
    batch = made_batch(model)
    optimizer = make_optimizer([ParameterGroup(policy)], None, lr=0.0)
    spent: dict[str, list[float]] = {"forward": [], "backward": [], "optimizer": []}
    for _ in range(REPEATS + 1):
        with watch(spent["forward"]), autocast(dtype):
            loss = policy(batch).logprobs.sum()
        with watch(spent["backward"]):
            loss.backward()
        with watch(spent["optimizer"]):
            clip_grad_norm(policy, 1.0)
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    result = {phase: statistics.median(times[1:]) for phase, times in spent.items()}
    result |= {"generate": generating(policy, model, dtype), AUTOCAST: kept_by(policy, batch, dtype)}
    return result | {AS_FSDP2: kept_by(policy.to(DTYPES[dtype]), batch, "float32")}


def kept_by(policy: Policy, batch: SequenceBatch, dtype: str) -> float:
    """Bytes that a forward keeps for the backward, the weights themselves not counted."""
    weights = storages(policy.parameters())
    with saved_for_backward() as saved, autocast(dtype):
        loss = policy(batch).logprobs.sum()
    del loss
    return float(sum(size for place, size in storages(saved).items() if place not in weights))


@contextmanager
def watch(times: list[float]) -> Iterator[None]:
    start = time.process_time()
    yield
    times.append(time.process_time() - start)


def autocast(dtype: str) -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bfloat16")


def made_batch(model: Architecture) -> SequenceBatch:
    rows = torch.randint(2, model.vocabulary, (ROWS, PROMPT + COMPLETION)).tolist()
    return pad_rows([row[:PROMPT] for row in rows], [row[PROMPT:] for row in rows], pad_token_id=0)


def generating(policy: Policy, model: Architecture, dtype: str) -> float:
    """The transformers engine, every completion at its limit: random weights hardly ever end one."""
    with tempfile.TemporaryDirectory() as folder:
        config_of(model).save_pretrained(folder)
        engine = TransformersEngine()
        engine.start(
            ModelSpec(name_or_path=folder, eos_token_ids=(1,), pad_token_id=0, max_length=4096, dtype=DTYPES[dtype])
        )
    engine.load_weights(named_weights(policy))
    prompts = torch.randint(2, model.vocabulary, (ROWS, PROMPT)).tolist()
    sampling = Sampling(max_completion_length=COMPLETION)
    return seconds_of(lambda: engine.generate(prompts, sampling, group_size=1, seeds=list(range(ROWS))))


def kept_bytes(model: Architecture, dtype: str, *, mixed: bool) -> float:
    """Activations as ``memory`` has them without checkpointing; with autocast, its copies of the weights too."""
    low, tokens = DTYPES[dtype].itemsize, ROWS * (PROMPT + COMPLETION)
    copied = low * model.matrices if mixed and low == 2 else 0
    layers = model.layers * model.kept_bytes(low, autocast=mixed)
    return float(copied + tokens * (layers + 2 * (4 + low) * model.hidden))


def main() -> None:
    torch.set_num_threads(1)
    rows = []
    for model in SIZES:
        rates = measured_rates()  # anew for each size: the machine has other work to do
        for dtype in DTYPES:
            seen, expected = measured(model, dtype), predicted(model, rates, dtype)
            expected |= {
                AUTOCAST: kept_bytes(model, dtype, mixed=True),
                AS_FSDP2: kept_bytes(model, dtype, mixed=False),
            }
            rows.append({"model": model.name, "parameters": model.parameters, "dtype": dtype, "rates": rates})
            rows[-1] |= {"measured": seen, "predicted": expected}
            factors = {phase: round(seen[phase] / expected[phase], 2) for phase in seen}
            print(f"{model.name} {dtype}: measured / predicted {factors}", flush=True)
    record = {"machine": machine(), "versions": versions(), "rows": ROWS, "prompt": PROMPT, "completion": COMPLETION}
    RECORD.write_text(json.dumps(record | {"sizes": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
