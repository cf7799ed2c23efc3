"""What one GPU says of the fused head, packing and FSDP2: python -m experiments.scaling.gpu --out FILE

At most 8 minutes on one card (no part begins after 6); no vLLM, no downloads: models have random weights in published
sizes. Every part stands by itself: what fails is recorded with its error, and the others go on. The file is written
anew after each. ``--tiny`` runs the same lines with small numbers, on a CPU too.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from experiments.machine import commit, machine, versions
from experiments.scaling.gpu_head import head_part
from experiments.scaling.gpu_meter import Meter
from experiments.scaling.gpu_rates import attention_part, rates_part
from experiments.scaling.gpu_step import fsdp2_part, packing_part

PARTS: dict[str, Callable[[Meter, dict[str, Any]], dict[str, Any]]] = {
    "rates": rates_part,
    "attention": attention_part,
    "head": head_part,
    "packing": packing_part,
    "fsdp2": fsdp2_part,
}
FULL: dict[str, Any] = {
    "square": 8192,
    "copied": 2**30,
    "thin": {"rows": [1, 16, 64, 256], "hidden": 8192, "width": 28_672},
    "attention": {"rows": 8, "heads": 16, "tokens": 2048, "width": 128},
    "head": {
        "H 1024, V 151,936": {"tokens": 4096, "hidden": 1024, "vocabulary": 151_936},
        "Qwen2.5-1.5B": {"tokens": 4096, "hidden": 1536, "vocabulary": 151_936},
    },
    "model": "Qwen2.5-0.5B",
    "batch": {"prompts": 2, "group": 8, "prompt": 256, "mean": 200.0, "limit": 768},
    "fsdp2": "Qwen2.5-0.5B",
}
TINY: dict[str, Any] = {
    "square": 64,
    "copied": 2**12,
    "thin": {"rows": [1, 4], "hidden": 32, "width": 64},
    "attention": {"rows": 2, "heads": 2, "tokens": 16, "width": 16},
    "head": {"tiny": {"tokens": 24, "hidden": 16, "vocabulary": 64}},
    "model": "tiny",
    "batch": {"prompts": 2, "group": 2, "prompt": 6, "mean": 4.0, "limit": 12},
    "fsdp2": "tiny",
}


def measure(out: Path, *, tiny: bool = False, minutes: float = 6.0, only: tuple[str, ...] = ()) -> dict[str, Any]:
    """Run every part, or those named, and write ``out``.

    Args:
        out: JSON file.
        tiny: small numbers.
        minutes: no part begins later than this.
        only: names of parts.
    """
    began, meter = time.perf_counter(), Meter("cuda" if torch.cuda.is_available() else "cpu")
    sizes = TINY if tiny else FULL
    record: dict[str, Any] = {
        "machine": machine(),
        "versions": versions(),
        "commit": commit(Path(__file__).resolve().parents[2]),
        "device": meter.name(),
        "sizes": sizes,
    }
    for name, part in PARTS.items():
        if only and name not in only:
            continue
        start = time.perf_counter()
        if start - began > 60 * minutes:
            record[name] = {"skipped": f"{minutes:g} minutes were over"}
        else:
            record[name] = _guarded(part, meter, sizes)
            record[name]["seconds"] = round(time.perf_counter() - start, 2)
        out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        told = record[name].get("error") or record[name].get("skipped") or "done"
        print(f"{name}: {told} ({time.perf_counter() - began:.0f} s so far)", flush=True)
    return record


def _guarded(
    part: Callable[[Meter, dict[str, Any]], dict[str, Any]], meter: Meter, sizes: dict[str, Any]
) -> dict[str, Any]:
    try:
        return part(meter, sizes)
    except Exception as error:  # a card's or driver's own trouble must not cost the other parts
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {str(error)[:500]}"}
    finally:
        gc.collect()
        meter.free()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.scaling.gpu", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--tiny", action="store_true", help="small numbers: a trial of the script itself")
    parser.add_argument("--minutes", type=float, default=6.0, help="no part begins later than this")
    parser.add_argument("--only", nargs="*", default=(), choices=list(PARTS), help="these parts alone")
    options = parser.parse_args()
    measure(options.out, tiny=options.tiny, minutes=options.minutes, only=tuple(options.only))


if __name__ == "__main__":
    main()
