"""What is asked of a step, and the settings that it is run with."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.scaling.architectures import Architecture


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One rollout. Lengths of completions are exponential, cut at the limit: a long tail, and no memory of the past."""

    name: str = ""
    prompts: int
    group: int
    prompt: int
    """Tokens of a prompt."""
    mean: float
    """Tokens of a completion, on average."""
    limit: int
    reference: bool = False
    """A KL term, and so a second model."""

    @property
    def completions(self) -> int:
        return self.prompts * self.group

    @functools.cached_property
    def decay(self) -> float:
        """Tokens d of exp(-s / d), the share of completions longer than s: mean = d (1 - exp(-limit / d))."""
        low, high = 1e-3, 1e3 * self.limit
        for _ in range(200):
            middle = math.sqrt(low * high)
            short = -middle * math.expm1(-self.limit / middle) < self.mean
            low, high = (middle, high) if short else (low, middle)
        return high

    @property
    def square(self) -> float:
        """Mean of the squared lengths: 2 d (mean - limit exp(-limit / d))."""
        return 2 * self.decay * (self.mean - self.limit * math.exp(-self.limit / self.decay))

    @property
    def age(self) -> float:
        """Tokens that a running completion has so far, on average."""
        return self.square / (2 * self.mean)

    def lengths(self, rows: int) -> Sequence[int]:
        """Of that many completions: evenly spaced quantiles."""
        return [max(1, round(min(-self.decay * math.log1p(-(i + 0.5) / rows), self.limit))) for i in range(rows)]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Settings of a run."""

    gpus: int
    strategy: str = "single"
    """single, ddp, fsdp2; hsdp (FSDP2 within each host, its copy on every host) is not built."""
    checkpointing: bool = False
    lora: int | None = None
    """Rank of the adapter, on bfloat16 weights."""
    layout: str = "shared"
    """padded; packed: sequences one behind the other; shared: besides, a group's prompt once."""
    micro_batch_tokens: int = 16_384
    windows: int = 1
    engine: str = "colocated"
    """server: GPUs of its own sample the next rollout while this one is learned from. Not built."""
    serving: int = 0
    """GPUs of the server engine."""
    engine_gpus: int = 1
    """GPUs that share one engine (tensor parallelism); more than 1 is not built."""
    max_sequences: int = 1024
    sleep: bool = True
    """The colocated engine hands its memory over while the trainer works, and gets it back (sleep level 2)."""
    number_bytes: int = 2
    """Of the compute dtype."""

    @property
    def trainers(self) -> int:
        return self.gpus - self.serving

    def shards(self, per_host: int) -> int:
        """Ranks that one copy of the trained model lies on."""
        return {"fsdp2": self.trainers, "hsdp": min(self.trainers, per_host)}.get(self.strategy, 1)

    @property
    def built(self) -> bool:
        """Whether the product can do it today."""
        return self.strategy != "hsdp" and self.engine == "colocated" and self.engine_gpus == 1


@dataclass(frozen=True)
class Work:
    """What one pass over a rank's share of a rollout computes."""

    tokens: float
    """Through the layers."""
    scored: float
    """Through the language-model head: completion tokens alone."""
    pairs: float
    """Query and key, in every layer."""
    micro_batches: int


@functools.cache
def work(workload: Workload, plan: Plan) -> Work:
    """Of one rank, all windows together."""
    rows = workload.completions / plan.trainers
    prompt, mean = workload.prompt, workload.mean
    own = prompt * mean + workload.square / 2  # pairs whose query is a completion's token
    if plan.layout == "padded":
        count = max(1, round(rows / plan.windows))
        lengths = [prompt + length for length in workload.lengths(count)]
        sizes = _padded(sorted(lengths, reverse=True), plan.micro_batch_tokens)
        tokens = plan.windows * sum(number * longest for number, longest in sizes)
        pairs = plan.windows * sum(number * longest**2 / 2 for number, longest in sizes)
        return Work(tokens, rows * mean, pairs, plan.windows * len(sizes))
    prompts = rows / workload.group * _copies_of_a_prompt(workload, plan)
    tokens = prompts * prompt + rows * mean
    micro_batches = plan.windows * math.ceil(tokens / plan.windows / plan.micro_batch_tokens)
    return Work(tokens, rows * mean, prompts * prompt**2 / 2 + rows * own, micro_batches)


def _padded(lengths: Sequence[int], bound: int) -> list[tuple[int, int]]:
    """Rows and longest row of each micro-batch: rows of like length together, as the product cuts them."""
    sizes: list[tuple[int, int]] = []
    for length in lengths:
        if sizes and (sizes[-1][0] + 1) * sizes[-1][1] <= bound:
            sizes[-1] = (sizes[-1][0] + 1, sizes[-1][1])
        else:
            sizes.append((1, length))
    return sizes


def _copies_of_a_prompt(workload: Workload, plan: Plan) -> float:
    """How often a group's prompt is computed: once for every micro-batch that the group is spread over."""
    if plan.layout == "packed":
        return workload.group
    spread = (workload.prompt + workload.group * workload.mean) / plan.micro_batch_tokens
    return min(workload.group, max(1.0, spread))


def trained_parameters(model: Architecture, plan: Plan) -> int:
    """Of the whole model or of the adapter."""
    return model.parameters if plan.lora is None else model.adapter(plan.lora)


def forward_flops(model: Architecture, done: Work) -> float:
    """2 FLOPs per weight and token; 4 H per layer and pair of tokens; the head on completions alone."""
    return 2 * model.matrices * done.tokens + attention_flops(model, done) + 2 * model.head * done.scored


def backward_flops(model: Architecture, done: Work, plan: Plan) -> float:
    """Gradients of inputs and of weights: twice the forward; frozen weights need the first alone.

    Attention recomputes its scores (2.5 times the forward). The fused head makes its logits again, a third product.
    Gradient checkpointing adds a forward of the layers.
    """
    frozen = plan.lora is not None
    layers = (2 if frozen else 4) * model.matrices * done.tokens + 2.5 * attention_flops(model, done)
    again = 2 * model.matrices * done.tokens + attention_flops(model, done) if plan.checkpointing else 0.0
    return layers + again + (4 if frozen else 6) * model.head * done.scored


def attention_flops(model: Architecture, done: Work) -> float:
    """Queries times keys, and their weights times values, 2 H each."""
    return 4.0 * model.layers * model.hidden * done.pairs
