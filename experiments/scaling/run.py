"""Computes the grid and writes results.json, the page's tables and the plots: python -m experiments.scaling.run"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.plots import write_table
from experiments.scaling.architectures import MODELS, QWEN2_5_7B, Architecture
from experiments.scaling.hardware import CARDS, Assumptions, Card
from experiments.scaling.memory import engine_bytes
from experiments.scaling.model import Step, step
from experiments.scaling.page import draw, page
from experiments.scaling.published import checks
from experiments.scaling.recommend import best, built_plans, other_plans, recommended
from experiments.scaling.setting import Plan, Workload

HERE = Path(__file__).resolve().parent
GPUS = (1, 8, 64, 512, 1024)
WORKLOADS = {
    "reasoning": Workload(name="reasoning", prompts=1024, group=8, prompt=250, mean=2000, limit=8192),
    "short answers": Workload(name="short answers", prompts=1024, group=8, prompt=150, mean=200, limit=512),
    "long prompts": Workload(name="long prompts", prompts=1024, group=8, prompt=3000, mean=300, limit=1024),
}
"""Each 8,192 completions a rollout, as DAPO has (512 x 16)."""
PLACE = (QWEN2_5_7B, 64, "H100", "reasoning")
"""Where one thing at a time is changed."""
SHARES = ("bandwidth_share", "link_share", "overlap")


def row(model: Architecture, gpus: int, card: Card, workload: Workload) -> dict[str, Any]:
    """One cell of the grid: what to pick of what is built; in one place also the best of what is not."""
    place = {"model": model.name, "gpus": gpus, "card": card.name, "workload": workload.name}
    chosen = recommended(model, workload, gpus, card=card)
    found = place | {"pick": _told(model, workload, chosen, card)}
    if (card.name, workload.name) == PLACE[2:]:
        other = best(model, workload, other_plans(gpus, per_host=card.per_host), card=card)
        found["not built"] = _told(model, workload, other, card)
    return found


def _told(
    model: Architecture, workload: Workload, chosen: tuple[Plan, Step] | None, card: Card
) -> dict[str, Any] | None:
    if chosen is None:
        return None
    plan, made = chosen
    given = engine_bytes(model, workload, plan, card=card, assumed=Assumptions())
    assert given is not None
    usual = dataclasses.asdict(Plan(gpus=plan.gpus))
    return {
        "plan": {name: value for name, value in dataclasses.asdict(plan).items() if value != usual[name]},
        "seconds": _round(made.seconds),
        "phases": {name: _round(value) for name, value in made.phases.items() if value},
        "memory_gb": {name: _round(value / 1e9) for name, value in made.memory.items() if value},
        "memory_share": round(given / card.memory, 2),
        "sequences": round(made.sequences),
    }


def _round(value: float) -> float:
    return float(f"{value:.4g}")


def windows() -> list[dict[str, Any]]:
    """At 1,024 completions for each optimizer step: a rollout of as many steps' completions, U windows."""
    model, gpus, card, name = PLACE
    found = []
    for updates in (1, 2, 4, 8):
        workload = dataclasses.replace(WORKLOADS[name], prompts=128 * updates)
        plans = (dataclasses.replace(p, windows=updates) for p in built_plans(gpus, lora=None))
        chosen = best(model, workload, plans, card=CARDS[card])
        assert chosen is not None
        made = chosen[1]
        shares = {phase: _round(made.phases[phase] / made.seconds) for phase in ("generate", "score")}
        found.append({"windows": updates, "seconds an optimizer step": _round(made.seconds / updates)} | shares)
    return found


def groups() -> list[dict[str, Any]]:
    """Forward and backward of 8,192 completions by group size and layout, without generation."""
    model, _, card, _ = PLACE
    found = []
    for name, workload in WORKLOADS.items():
        for group in (2, 4, 8, 16, 32):
            sized = dataclasses.replace(workload, group=group, prompts=8192 // group)
            seconds = {}
            for layout in ("padded", "packed", "shared"):
                plan = Plan(gpus=8, strategy="fsdp2", checkpointing=True, layout=layout, micro_batch_tokens=32_768)
                made = step(model, sized, plan, card=CARDS[card])
                assert made is not None
                seconds[layout] = _round(made.phases["forward"] + made.phases["backward"])
            found.append({"workload": name, "group": group} | seconds)
    return found


def sensitivity() -> list[dict[str, Any]]:
    """Seconds of a step with each assumption smaller and larger: shares by a quarter, all others by half and double."""
    model, gpus, card, name = PLACE

    def seconds(assumed: Assumptions, of: Card) -> float:
        chosen = recommended(model, WORKLOADS[name], gpus, card=of, assumed=assumed)
        assert chosen is not None
        return _round(chosen[1].seconds)

    plain, of = Assumptions(), CARDS[card]
    found = [{"assumption": "matmul (of the card)", "value": of.matmul}]
    found[0] |= {
        side: seconds(plain, dataclasses.replace(of, matmul=factor * of.matmul))
        for side, factor in (("smaller", 0.75), ("larger", 1.25))
    }
    for field in dataclasses.fields(Assumptions):
        value = getattr(plain, field.name)
        low, high = (0.75, 1.25) if field.name in SHARES else (0.5, 2.0)
        entry: dict[str, Any] = {"assumption": field.name, "value": value}
        for side, factor in (("smaller", low), ("larger", high)):
            changed = min(1.0, factor * value) if field.name in SHARES else type(value)(factor * value)
            entry[side] = seconds(dataclasses.replace(plain, **{field.name: changed}), of)
        found.append(entry)
    return [{"assumption": "none", "value": None, "smaller": seconds(plain, of), "larger": seconds(plain, of)}, *found]


def grid() -> Iterator[dict[str, Any]]:
    for workload in WORKLOADS.values():
        for card in CARDS.values():
            for model in MODELS:
                for gpus in GPUS:
                    yield row(model, gpus, card, workload)


def main() -> None:
    rows = list(grid())
    record = {
        "workloads": {name: dataclasses.asdict(workload) for name, workload in WORKLOADS.items()},
        "cards": {name: dataclasses.asdict(card) for name, card in CARDS.items()},
        "assumptions": dataclasses.asdict(Assumptions()),
        "windows": windows(),
        "groups": groups(),
        "sensitivity": sensitivity(),
        "published": [check._asdict() for check in checks()],
    }
    lines = ",\n".join(json.dumps(entry) for entry in rows)
    text = json.dumps(record, indent=1)[:-2] + f',\n "grid": [\n{lines}\n]\n}}\n'
    (HERE / "results.json").write_text(text, encoding="utf-8")
    record["grid"] = rows  # plans: what differs from ``Plan``'s defaults
    record["calibration"] = json.loads((HERE / "calibration.json").read_text("utf-8"))
    write_table(HERE / "README.md", page(record))
    draw(record, HERE)


if __name__ == "__main__":
    main()
