"""The precision in which ``check`` compares is that of the run, in one process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.plugins.precision import HalfPrecision, MixedPrecision, Precision

from grpo_lightning.check.gap import in_the_run_s_precision, load_policy
from grpo_lightning.strategies import FSDP2Precision


class Model(torch.nn.Module):
    """What is looked at of a policy's module."""

    adapter = None
    policy_path = ""
    layout = ""
    device = torch.device("cpu")

    def __init__(self, precision: Precision) -> None:
        super().__init__()
        strategy = SimpleNamespace(root_device=self.device)
        self.trainer: Any = SimpleNamespace(precision_plugin=precision, strategy=strategy)
        self.policy: Any = None

    def build_policy(self, path: str) -> Any:
        policy: Any = torch.nn.Linear(2, 2)
        policy.layout, policy.late = "padded", torch.nn.Parameter(torch.ones(1, dtype=torch.float32))
        return policy


@pytest.mark.parametrize(
    ("precision", "weights", "product"),
    [
        (Precision(), torch.float32, torch.float32),
        (FSDP2Precision("bf16-mixed", "cpu"), torch.float32, torch.bfloat16),
        (MixedPrecision("bf16-mixed", "cpu"), torch.float32, torch.bfloat16),
        (HalfPrecision("bf16-true"), torch.bfloat16, torch.bfloat16),
    ],
)
def test_weights_and_products(precision: Precision, weights: torch.dtype, product: torch.dtype) -> None:
    model = Model(precision)
    load_policy(model)
    assert {weight.dtype for weight in model.policy.parameters()} == {weights}
    with in_the_run_s_precision(model), precision.forward_context():  # the second is around every forward
        assert model.policy(torch.ones(1, 2, dtype=weights)).dtype == product
