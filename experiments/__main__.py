"""All experiments that need nothing but this checkout, one after the other: python -m experiments [name ...]

What is finished is kept in runs/, so that a stopped series goes on where it was. Not among them: real_weights, which
needs a pretrained model, benchmark and fused_head, which need the machine for themselves, and answer_checking, which
trains nothing.
"""

from __future__ import annotations

import argparse
import importlib
import time

PARTS = {
    "quickstart": ("quickstart.collect",),
    "custom_task": ("custom_task.run", "custom_task.collect"),
    "group_size": ("group_size.run",),
    "beta": ("beta.run",),
    "passes": ("passes.run",),
    "objectives": ("objectives.run",),
    "ppo": ("ppo.run",),
    "curriculum": ("curriculum.run",),
    "prompting": ("prompting.run",),
    "strategies": ("strategies.run",),
    "random_rewards": ("random_rewards.run",),
    "emergence": ("emergence.run",),
    "plain_form": ("plain_form.run",),
    "scaling": ("scaling.calibrate", "scaling.run"),
}
"""Modules of each experiment, in their order."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments", description="Run the experiments again.")
    parser.add_argument("names", nargs="*", metavar="name", help=f"default: all of {', '.join(PARTS)}")
    names = parser.parse_args().names or list(PARTS)
    for name in names:
        if name not in PARTS:
            parser.error(f"there is no experiment {name}; choose from {', '.join(PARTS)}")
    began = time.perf_counter()
    for name in names:
        start = time.perf_counter()
        for part in PARTS[name]:
            importlib.import_module(f"experiments.{part}").main()
        print(f"experiments/{name}: {_minutes(start)}", flush=True)
    print(f"all of them: {_minutes(began)}", flush=True)


def _minutes(start: float) -> str:
    return f"{(time.perf_counter() - start) / 60:.1f} min"


if __name__ == "__main__":
    main()
