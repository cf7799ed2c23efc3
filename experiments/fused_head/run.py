"""Time and memory of the head's log-probabilities in blocks, against the plain form, at the shapes of three workloads.

OMP_NUM_THREADS=1 python -m experiments.fused_head.run [--rounds 5] [--only W2]

Every figure comes from a fresh process; the forms take turns, so that whatever else the machine does meets all of them.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from experiments.machine import commit, machine, versions
from experiments.plots import write_table
from grpo_lightning.functional.logprobs import head_logprobs

HERE = Path(__file__).resolve().parent
MB = 1e6


class Shape(NamedTuple):
    """Of a head and of what it reads."""

    tokens: int
    hidden: int
    vocabulary: int
    repeats: int
    """Forward and backward passes that are timed in one process."""


SHAPES = {
    "W2": Shape(4_800, 384, 32_768, 1),
    "Qwen": Shape(4_096, 1_024, 151_936, 1),
    "quickstart": Shape(8_000, 128, 49, 30),
}
GROWTH = {f"vocabulary {v:,}": Shape(2_048, 256, v, 1) for v in (16_384, 32_768, 65_536, 131_072)}
DTYPES, FORMS = ("float32", "bfloat16"), ("plain", "blocks")


def plain(hidden: Tensor, weight: Tensor, targets: Tensor, *, bonus: bool) -> tuple[Tensor, Tensor]:
    """From all logits at once, with autograd's own backward; the entropy without a gradient if no loss has it."""
    log_p = (hidden @ weight.T).float().log_softmax(dim=-1)
    with torch.set_grad_enabled(bonus):
        entropy = -(log_p.exp() * log_p).sum(dim=-1)
    return log_p.gather(1, targets[:, None]).squeeze(1), entropy


def blocks(hidden: Tensor, weight: Tensor, targets: Tensor, *, bonus: bool) -> tuple[Tensor, Tensor]:
    del bonus
    return head_logprobs(hidden, weight, targets)


# --- one process ---------------------------------------------------------------------------------------------------


def measure(shape: Shape, dtype: str, form: str, *, bonus: bool) -> dict[str, Any]:
    """Seconds forward and backward, and peak memory beyond the inputs and their gradients.

    Args:
        shape: of head and states; both are float32, and bfloat16 is autocast's.
        dtype: of the products.
        form: of ``FORMS``.
        bonus: the loss has the entropy in it.
    """
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(shape.tokens, shape.hidden, generator=generator).requires_grad_()
    weight = (torch.randn(shape.vocabulary, shape.hidden, generator=generator) / shape.hidden**0.5).requires_grad_()
    targets = torch.randint(0, shape.vocabulary, (shape.tokens,), generator=generator)
    slopes = torch.randn(shape.tokens, generator=generator)
    function = {"plain": plain, "blocks": blocks}[form]

    def step(tokens: int) -> tuple[float, float]:
        hidden.grad = weight.grad = None
        start = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bfloat16"):
            logprobs, entropy = function(hidden[:tokens], weight, targets[:tokens], bonus=bonus)
        between = time.perf_counter()
        loss = (logprobs * slopes[:tokens]).sum()
        (loss + 0.01 * entropy.sum() if bonus else loss).backward()
        return between - start, time.perf_counter() - between

    step(8)  # torch's own start-up
    hidden.grad = weight.grad = None
    ctypes.CDLL(None).malloc_trim(0)  # what was freed would serve unseen
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
    seconds = [step(shape.tokens)]
    extra = status("VmHWM") - before - hidden.nbytes - weight.nbytes
    seconds += [step(shape.tokens) for _ in range(shape.repeats - 1)]
    forward, backward = (statistics.median(column) for column in zip(*seconds, strict=True))
    return {"forward": forward, "backward": backward, "extra_mb": max(extra, 0) / MB}


def status(key: str) -> int:
    """A figure of this process in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


# --- all of them ---------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="processes for each figure")
    parser.add_argument("--only", help="one of the shapes")
    parser.add_argument("--one", nargs=4, metavar=("SHAPE", "DTYPE", "FORM", "BONUS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        name, dtype, form, bonus = arguments.one
        print(json.dumps(measure((SHAPES | GROWTH)[name], dtype, form, bonus=bonus == "bonus")))
        return
    file = HERE / "results.json"
    cases = json.loads(file.read_text("utf-8"))["cases"] if file.exists() and arguments.only else {}
    for name, shape in (SHAPES | GROWTH).items():
        if arguments.only in (None, name):
            cases |= take_turns(name, shape, rounds=arguments.rounds if name in SHAPES else 1)
            save(file, cases)


def save(file: Path, cases: dict[str, Any]) -> None:
    """After each shape: a run that is interrupted keeps what it has."""
    record = {
        "command": "python -m experiments.fused_head.run",
        "machine": machine(),
        "commit": commit(HERE),
        "versions": versions(),
        "units": "seconds; MB (1e6 bytes) beyond inputs and gradients",
        "cases": cases,
    }
    file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    write_table(HERE / "README.md", page(cases))


def take_turns(name: str, shape: Shape, *, rounds: int) -> dict[str, Any]:
    """All figures of one shape by case and form, each with the processes' own under ``all``."""
    found: dict[str, Any] = {}
    settings = [(dtype, "") for dtype in DTYPES] + ([("bfloat16", "bonus")] if name == "W2" else [])
    for dtype, bonus in settings:
        runs: dict[str, list[dict[str, Any]]] = {form: [] for form in FORMS}
        loads = []
        for _ in range(rounds):
            for form in FORMS:
                if form == "plain":
                    require_memory(4 * 4 * shape.tokens * shape.vocabulary)
                loads.append(os.getloadavg()[0])
                runs[form].append(in_a_process(name, dtype, form, bonus))
        case = ", ".join(filter(None, (name, dtype, bonus and "entropy bonus")))
        found[case] = {form: middle(of_form) for form, of_form in runs.items()} | {
            "shape": shape._asdict(),
            "load": [min(loads), max(loads)],
            "time_ratio": statistics.median(map(ratio, runs["blocks"], runs["plain"])),
        }
        print(case, json.dumps(found[case]), flush=True)
    return found


def in_a_process(*words: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "experiments.fused_head.run", "--one", *words]
    result = subprocess.run(command, capture_output=True, text=True, cwd=HERE.parents[1], check=True)
    return json.loads(result.stdout.splitlines()[-1])


def require_memory(size: int) -> None:
    """Stop rather than have the plain form take the memory of everybody else."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    if free < size:
        sys.exit(f"the plain form needs about {size / 1e9:.0f} GB of memory, and {free / 1e9:.0f} are free")


def middle(runs: list[dict[str, Any]]) -> dict[str, Any]:
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]} | {"all": runs}


def ratio(ours: dict[str, Any], theirs: dict[str, Any]) -> float:
    return (ours["forward"] + ours["backward"]) / (theirs["forward"] + theirs["backward"])


def page(cases: dict[str, Any]) -> str:
    timed = {name: case for name, case in cases.items() if not name.startswith(tuple(GROWTH))}
    lines = [
        "| | tokens x hidden, vocabulary | plain: s | blocks: s | time, blocks / plain | plain: MB | blocks: MB |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, case in timed.items():
        shape = Shape(**case["shape"])
        size = f"{shape.tokens:,} x {shape.hidden:,}, {shape.vocabulary:,}"
        seconds = [f"{case[form]['forward'] + case[form]['backward']:.3g}" for form in FORMS]
        cells = [name, size, *seconds, f"{case['time_ratio']:.2f}", *memory(case)]
        lines.append(f"| {' | '.join(cells)} |")
    if growth := {name: case for name, case in cases.items() if name not in timed}:
        lines += ["", "| 2,048 tokens x 256 | plain: MB | blocks: MB |", "|---|---|---|"]
        lines += [f"| {' | '.join([name, *memory(case)])} |" for name, case in growth.items()]
    return "\n".join(lines)


def memory(case: dict[str, Any]) -> list[str]:
    return [f"{case[form]['extra_mb']:,.0f}" for form in FORMS]


if __name__ == "__main__":
    main()
