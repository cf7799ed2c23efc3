"""Would torch.compile make the head faster? Its elementwise parts alone, op by op as they are against one kernel each.

OMP_NUM_THREADS=1 TORCHINDUCTOR_FORCE_DISABLE_CACHES=1 python -m experiments.fused_head.compiled
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from experiments.fused_head.run import HERE
from experiments.machine import machine, versions

SIDE, REPEATS = 1024, 30
"""Of a square of logits: 4 MiB, a quarter of a block on a CPU."""


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    product = torch.randn(SIDE, SIDE, generator=generator).bfloat16()
    rows = torch.randn(2, SIDE, generator=generator)
    kept, spare = torch.empty(SIDE, SIDE), torch.empty(SIDE, SIDE)

    def fold_by_op(product: Tensor, largest: Tensor, _: Tensor) -> tuple[Tensor, ...]:
        logits = kept.copy_(product)
        raised = torch.maximum(largest, logits.amax(dim=1))
        p = torch.exp(logits.sub_(raised[:, None]), out=spare)
        return raised, logits.mul_(p).sum(dim=1), p.sum(dim=1)

    def slope_by_op(product: Tensor, normalizer: Tensor, slope: Tensor) -> Tensor:
        log_p = kept.copy_(product).sub_(normalizer[:, None])
        return torch.exp(log_p, out=spare).mul_(-slope[:, None]).bfloat16()

    found: dict[str, Any] = {}
    for name, by_op, whole in (("forward", fold_by_op, fold), ("backward", slope_by_op, slope)):
        compiled = torch.compile(whole, dynamic=True)
        found[name] = {
            form: timed(function, product, *rows) for form, function in (("op by op", by_op), ("compiled", compiled))
        }
    record = {
        "command": "python -m experiments.fused_head.compiled",
        "machine": machine(),
        "versions": versions(),
        "units": "first call: seconds; later: nanoseconds for each logit",
        **found,
    }
    (HERE / "compiled.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(record, indent=1))


def fold(product: Tensor, largest: Tensor, _: Tensor) -> tuple[Tensor, ...]:
    logits = product.float()
    raised = torch.maximum(largest, logits.amax(dim=1))
    below = logits - raised[:, None]
    p = below.exp()
    return raised, (below * p).sum(dim=1), p.sum(dim=1)


def slope(product: Tensor, normalizer: Tensor, slope: Tensor) -> Tensor:
    return ((product.float() - normalizer[:, None]).exp() * -slope[:, None]).bfloat16()


def timed(function: Callable[..., Any], *arguments: Tensor) -> dict[str, float]:
    seconds = []
    for _ in range(1 + REPEATS):
        start = time.perf_counter()
        function(*arguments)
        seconds.append(time.perf_counter() - start)
    return {"first call": seconds[0], "later": statistics.median(seconds[1:]) * 1e9 / SIDE**2}


if __name__ == "__main__":
    main()
