"""How a step's time and memory grow, one factor at a time: python -m experiments.benchmark.growth [FACTOR ...]

Random models and random completions, all of the same length; nothing is generated, so that what grows is the training
phases: forward, backward, optimizer. One micro-batch, bf16-mixed, in a new process each.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.base_model import ROOT
from experiments.benchmark.job import NONE, OURS, TRL, Job, Recording
from experiments.benchmark.process import measure
from experiments.machine import commit, machine
from grpo_lightning.models.flops import Shape
from grpo_lightning.types import Completion

HERE = Path(__file__).resolve().parent
RUNS = ROOT / "runs" / "benchmark" / "growth"
RECORD = HERE / "growth.json"
FLOAT = 4


@dataclass(frozen=True, kw_only=True)
class Point:
    """A step of so many tokens by a model of that size."""

    group_size: int = 8
    completion: int = 128
    prompt: int = 128
    vocabulary: int = 8192
    hidden: int = 256
    prompts: int = 2
    layers: int = 4


FACTORS: dict[str, tuple[int, ...]] = {
    "group_size": (4, 8, 16, 32),
    "completion": (64, 128, 256, 512),
    "prompt": (64, 128, 256, 512),
    "vocabulary": (8192, 16384, 32768, 65536),
    "hidden": (128, 256, 384, 512),
}
"""Values of each field of ``Point``; the others stay at their defaults."""
TITLES = {
    "group_size": "completions of a prompt",
    "completion": "tokens of a completion",
    "prompt": "tokens of a prompt",
    "vocabulary": "vocabulary",
    "hidden": "weights besides the vocabulary's",
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmark.growth", description=__doc__.split(":")[0])
    parser.add_argument("factors", nargs="*", metavar="FACTOR", help=f"default: all of {', '.join(FACTORS)}")
    parser.add_argument("--ours", action="store_true", help="do not run TRL")
    arguments = parser.parse_args()
    for name in arguments.factors:
        if name not in FACTORS:
            parser.error(f"there is no factor {name}; choose from {', '.join(FACTORS)}")
    record = json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {"factors": {}}
    record |= {"machine": machine(), "commit": commit(ROOT)}
    for name in arguments.factors or FACTORS:
        points = [Point(**{name: value}) for value in FACTORS[name]]
        sides = (OURS,) if arguments.ours else (OURS, TRL)
        record["factors"][name] = {side: [run(point, side) for point in points] for side in sides}
        RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    write(record)


def run(point: Point, trainer: str) -> dict[str, Any]:
    """Seconds and MiB of a step."""
    folder = RUNS / "-".join(f"{name}{value}" for name, value in dataclasses.asdict(point).items())
    weights = make(point, folder)
    job = Job(
        trainer=trainer,
        engine=NONE,
        model=str(folder / "model"),
        data=str(folder),
        prompts_per_step=point.prompts,
        group_size=point.group_size,
        max_prompt_length=point.prompt,
        max_completion_length=point.completion,
        rows=point.prompts * point.group_size,
        precision="bf16-mixed",
        steps=2,
        options={"max_logp_difference": 1e9},
        commit=commit(ROOT),
    )
    result = measure(job, folder / trainer)
    seconds = min(step["step"] for step in result["steps"][1:])
    above = result["memory"]["above_load"]
    print(f"{folder.name} {trainer}: {seconds:.2f} s, {above:.0f} MiB above load", flush=True)
    own = gradient_and_optimizer(weights["all"]) / 2**20
    return {**dataclasses.asdict(point), "weights": weights, "seconds": seconds, "memory": above, "beyond": above - own}


def gradient_and_optimizer(weights: int) -> int:
    """Bytes that any trainer in float32 with Adam holds above its weights: a gradient and two moments."""
    return 3 * FLOAT * weights


def make(point: Point, folder: Path) -> dict[str, int]:
    """Model, prompts and completions; returns the numbers of weights, all and those besides the vocabulary's."""
    from experiments.benchmark.model_w2 import CHARACTERS, EOS, character_tokenizer, random_model

    model = random_model(hidden=point.hidden, mlp=4 * point.hidden, layers=point.layers, vocabulary=point.vocabulary)
    tokenizer = character_tokenizer(point.vocabulary)
    if not (folder / "completions.jsonl").exists():
        model.save_pretrained(folder / "model")
        tokenizer.save_pretrained(folder / "model")
        draws = random.Random(0)
        texts = ["".join(draws.choices(CHARACTERS, k=point.prompt)) for _ in range(3 * point.prompts)]
        lines = "".join(json.dumps({"question": text, "answer": "0"}) + "\n" for text in texts)
        (folder / "prompts.jsonl").write_text(lines, encoding="utf-8")
        groups = [[_completion(draws, point, eos=EOS) for _ in range(point.group_size)] for _ in texts]
        Recording.write(folder, [tokenizer.encode(text) for text in texts], groups)
    return {"all": model.num_parameters(), "body": Shape.of(model.config).weights}


def _completion(draws: random.Random, point: Point, *, eos: int) -> Completion:
    tokens = [draws.randrange(2, point.vocabulary) for _ in range(point.completion - 1)]
    logprobs = [-math.log(point.vocabulary)] * point.completion
    return Completion(token_ids=[*tokens, eos], logprobs=logprobs, finished=True)


def slope(values: Sequence[float], measured: Sequence[float]) -> float:
    """Exponent of growth: 1 is linear, 0 flat; by least squares on logarithms."""
    return float(np.polyfit(np.log(values), np.log(measured), 1)[0])


def size_of(factor: str, runs: Iterable[dict[str, Any]]) -> list[int]:
    """What grows: the factor itself; for the width, the weights that come of it."""
    return [run["weights"]["body"] if factor == "hidden" else run[factor] for run in runs]


def exponents(values: Sequence[float], measured: Sequence[float]) -> str:
    """Over all values, and between the last two: what does not grow weighs less there."""
    return f"{slope(values, measured):.2f} ({slope(values[-2:], measured[-2:]):.2f})"


def table(record: dict[str, Any]) -> list[list[str]]:
    """Exponents, and what the last value takes."""
    rows = [["what grows", "from", "to", "side", "time", "memory", "at the end (s)", "(MiB)"]]
    for factor, sides in record["factors"].items():
        for side, runs in sides.items():
            sizes, seconds, memory = size_of(factor, runs), *([r[name] for r in runs] for name in ("seconds", "beyond"))
            powers = exponents(sizes, seconds), exponents(sizes, memory)
            ends = f"{sizes[0]:,}", f"{sizes[-1]:,}"
            rows.append([TITLES[factor], *ends, side, *powers, f"{seconds[-1]:.2f}", f"{memory[-1]:.0f}"])
    return rows


def draw(record: dict[str, Any], path: Path) -> None:
    """Time above, memory below, one column a factor, on logarithmic scales."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import EngFormatter, FormatStrFormatter, LogLocator, NullFormatter

    from experiments.plots import OKABE_ITO

    factors = record["factors"]
    figure, axes = plt.subplots(2, len(factors), figsize=(3 * len(factors), 6), layout="constrained", squeeze=False)
    for column, (factor, sides) in enumerate(factors.items()):
        for side, runs in sides.items():
            sizes, color = size_of(factor, runs), OKABE_ITO[0 if side == OURS else 1]
            for row, name in enumerate(("seconds", "beyond")):
                axes[row, column].plot(sizes, [run[name] for run in runs], "o-", color=color, label=side)
        for row in range(2):
            place = axes[row, column]
            place.set(xscale="log", yscale="log", xlabel=TITLES[factor])
            place.set_xticks(sizes, minor=False)
            place.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            place.xaxis.set_major_formatter(EngFormatter(places=0, sep=""))
            place.yaxis.set_major_formatter(FormatStrFormatter("%g"))
            for axis in (place.xaxis, place.yaxis):
                axis.set_minor_formatter(NullFormatter())
            place.grid(alpha=0.3)
    axes[0, 0].set_ylabel("seconds a step")
    axes[1, 0].set_ylabel("MiB above load, without\ngradient and optimizer")
    axes[0, 0].legend()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def write(record: dict[str, Any]) -> None:
    """The table into the page, and the drawing."""
    from experiments.plots import markdown, write_table

    write_table(HERE / "README.md", markdown(table(record)), name="growth")
    draw(record, HERE / "growth.png")


if __name__ == "__main__":
    main()
