"""What is run: three workloads, each with its model, its prompts and completions recorded once for both trainers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from experiments.base_model import ROOT, quickstart_base
from experiments.benchmark.job import Recording

RUNS = ROOT / "runs" / "benchmark"
STEPS = 4
"""Rollouts that are recorded: the one before the measured ones, and at most three of those."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One model, one kind of prompt, one shape of a step."""

    title: str
    prompts_per_step: int
    group_size: int
    max_completion_length: int
    precision: str
    """Of the runs that are repeated."""
    rows: int
    """Sequences in a micro-batch, on both sides."""
    kv_cache_gib: float
    """Of vLLM on CPUs: what all completions of a step need, with room."""
    trl_rows: tuple[int, ...]
    """Micro-batches that TRL is tried with, to find its best."""
    steps: int
    """Measured in each run."""
    model: Callable[[Sources], str]
    """Folder or id, made where it has to be."""
    questions: Callable[[int, Sources], list[str]]
    """So many prompts, as they are put to the model."""
    extra: tuple[dict[str, object], ...]
    """Changes of a job that are run once."""
    engine: str = "vllm"
    """Our default where it can be installed."""


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where real weights and questions come from."""

    gemma: str = "google/gemma-3-270m"
    gsm8k: str | None = None
    """A JSON Lines file with ``question``; None is the hub's ``openai/gsm8k``."""


def running_totals(number: int, _: Sources) -> list[str]:
    """The quickstart's own, from its first on."""
    from grpo_lightning.data import RunningTotals

    return [row["question"] for row in RunningTotals(split="train", size=1920, seed=1).rows()[:number]]


def random_characters(number: int, _: Sources, *, length: int = 200) -> list[str]:
    """Texts of visible characters, by a fixed seed."""
    from experiments.benchmark.model_w2 import CHARACTERS

    draws = random.Random("prompts of random characters")
    return ["".join(draws.choices(CHARACTERS, k=length)) for _ in range(number)]


def gsm8k(number: int, sources: Sources) -> list[str]:
    """GSM8K's questions after a worked example, its first row: without one, a base model often says nothing."""
    from grpo_lightning.data import GSM8K

    source = GSM8K(split="train", path=sources.gsm8k) if sources.gsm8k else GSM8K(split="train")
    example, *rows = source.rows()[: 1 + number]
    shown = f"Question: {example['question']}\nAnswer: {example['solution']}\n\n"
    return [f"{shown}Question: {row['question']}\nAnswer:" for row in rows]


def w2_model(_: Sources) -> str:
    """Made on first use."""
    from experiments.benchmark.model_w2 import make

    folder = RUNS / "W2" / "model"
    if not (folder / "tokenizer.json").exists():
        make(folder)
    return str(folder)


WORKLOADS = {
    "W1": Workload(
        title="tiny: 0.8M parameters, 49 tokens of vocabulary, running totals",
        prompts_per_step=32,
        group_size=8,
        max_completion_length=64,
        precision="32-true",
        rows=256,
        kv_cache_gib=0.1,
        trl_rows=(256, 128, 64, 32, 16),
        steps=3,
        model=lambda _: str(quickstart_base(0)),
        questions=running_totals,
        extra=({"beta": 0.04},),
    ),
    "W2": Workload(
        title="vocabulary-heavy: 25M parameters, 32,768 tokens of vocabulary, 200 random characters",
        prompts_per_step=8,
        group_size=8,
        max_completion_length=256,
        precision="bf16-mixed",
        rows=64,
        kv_cache_gib=0.25,
        trl_rows=(64, 32, 16, 8, 4),
        steps=1,
        model=w2_model,
        questions=random_characters,
        extra=({"precision": "32-true"}, {"beta": 0.04}),
    ),
    "W3": Workload(
        title="real weights: Gemma 3 270M, 262,144 tokens of vocabulary, GSM8K",
        prompts_per_step=2,
        group_size=4,
        max_completion_length=96,
        precision="bf16-mixed",
        rows=8,
        kv_cache_gib=0.1,
        trl_rows=(8, 4, 2),
        steps=2,
        model=lambda sources: sources.gemma,
        questions=gsm8k,
        extra=({"precision": "32-true"}, {"beta": 0.04}),
    ),
}


def prepare(name: str, sources: Sources) -> str:
    """Make model, prompts and recorded completions where they are missing; returns the model."""
    workload, folder = WORKLOADS[name], RUNS / name
    folder.mkdir(parents=True, exist_ok=True)
    model = workload.model(sources)
    questions = workload.questions(STEPS * workload.prompts_per_step, sources)
    wanted = "".join(json.dumps({"question": text, "answer": "0"}) + "\n" for text in questions)
    stamp, made_of = folder / "made_of.txt", f"{model}\n{wanted}"
    if not stamp.exists() or stamp.read_text("utf-8") != made_of:
        print(f"{name}: recording completions of {len(questions)} prompts", flush=True)
        (folder / "prompts.jsonl").write_text(wanted, encoding="utf-8")
        limit = workload.max_completion_length
        record(model, folder, questions, group_size=workload.group_size, max_completion_length=limit)
        stamp.write_text(made_of, encoding="utf-8")
    return model


def record(model: str, folder: Path, questions: list[str], *, group_size: int, max_completion_length: int) -> None:
    """Sample completions in float32 at temperature 1 and write them to ``folder``."""
    import torch

    from grpo_lightning.engines import ModelSpec, Sampling, TransformersEngine
    from grpo_lightning.models.loading import eos_token_ids, load_config, load_policy, load_tokenizer
    from grpo_lightning.models.weights import named_weights

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = load_tokenizer(model, flag="model")
    prompts = [encode(tokenizer, question) for question in questions]
    model_at = {"config": load_config(model, flag="model"), "flag": "model", "device": device}
    policy = load_policy(model, **model_at, dtype="float32", attn_implementation="sdpa")
    engine = TransformersEngine()
    engine.start(
        ModelSpec(
            name_or_path=model,
            eos_token_ids=eos_token_ids(model, tokenizer),
            pad_token_id=tokenizer.pad_token_id,
            max_length=max(map(len, prompts)) + max_completion_length,
            device=device,
        )
    )
    engine.load_weights(named_weights(policy))
    sampling = Sampling(max_completion_length=max_completion_length)
    seeds = [1_000_003 * number for number in range(len(prompts))]
    Recording.write(folder, prompts, engine.generate(prompts, sampling, group_size=group_size, seeds=seeds))


def encode(tokenizer: object, question: str) -> list[int]:
    """As both trainers do."""
    from grpo_lightning.data import PromptTemplate

    template = PromptTemplate(chat=False, layout="{question}", answer_format="none")
    return template.prompt({"question": question, "answer": "0"}, tokenizer=tokenizer).token_ids
