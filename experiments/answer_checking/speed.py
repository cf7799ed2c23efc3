"""How many answers a second `math_accuracy` checks on one core.

OMP_NUM_THREADS=1 python -m experiments.answer_checking.speed [--math500 FILE] [--write results.json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from experiments.machine import processor, versions
from grpo_lightning.rewards import math_accuracy
from grpo_lightning.rewards.answers import notation, numbers, readings

CHECKS = 20_000
REPEATS = 7


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--math500", type=Path, help="MATH-500 as JSON lines with a column 'answer'")
    parser.add_argument("--write", type=Path, help="where to keep the record")
    arguments = parser.parse_args()
    if arguments.math500 and not arguments.math500.exists():
        parser.error(f"--math500 {arguments.math500}: no such file; download test.jsonl of HuggingFaceH4/MATH-500")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    record = {
        "command": " ".join(["python -m experiments.answer_checking.speed", *sys.argv[1:]]),
        "machine": f"one core of {os.cpu_count()} ({processor()})",
        "load": os.getloadavg()[0],
        "versions": versions(),
        "repeats": REPEATS,
        "checks_per_second": {"plain numbers": measure(plain_numbers())},
    }
    if arguments.math500:
        golds = [json.loads(line)["answer"] for line in arguments.math500.read_text("utf-8").splitlines()]
        record["checks_per_second"] |= {
            "MATH-500 golds as they stand": measure((golds, [f"so $\\boxed{{{gold}}}$." for gold in golds])),
            "MATH-500 golds in another spelling": measure((golds, [f"so $\\boxed{{{respelled(g)}}}$." for g in golds])),
        }
    if arguments.write:
        arguments.write.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(record, indent=2))


def plain_numbers() -> tuple[list[str], list[str]]:
    """Distinct golds, so that no cache helps, in a short worked answer."""
    golds = [str(number) for number in range(CHECKS)]
    said = [f"We add {gold} and 0.\nThat was asked for. Therefore the result is $\\boxed{{{gold}}}$." for gold in golds]
    return golds, said


def respelled(gold: str) -> str:
    r"""The same answer so that the texts differ: ``\frac`` as ``\dfrac``, space around it."""
    return rf"\displaystyle {gold}\,".replace(r"\frac", r"\dfrac")


def measure(task: tuple[list[str], list[str]]) -> dict[str, float]:
    """Checks per second; every repeat starts with empty caches of answers, only the golds are known to be readable."""
    golds, said = task
    rates = [rate(lambda: math_accuracy(completions=said, answer=golds), golds) for _ in range(REPEATS)]
    return {"median": round(statistics.median(rates)), "slowest": round(min(rates)), "fastest": round(max(rates))}


def rate(check: Callable[[], list[float | None]], golds: list[str]) -> float:
    for cached in (notation.normal_form, numbers.read_number, numbers._parse_number, readings.read):
        cached.cache_clear()
    start = time.perf_counter()
    scores = check()
    seconds = time.perf_counter() - start
    if scores != [1.0] * len(golds):
        raise SystemExit("an answer was refused: the figure would mean nothing")
    return len(golds) / seconds


if __name__ == "__main__":
    main()
