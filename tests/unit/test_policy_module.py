"""The learning rate that the user chose."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from grpo_lightning.policy_module import chosen_lr


def adamw(**given: float) -> partial:
    """AdamW as the command line builds it: every default filled in."""
    return partial(torch.optim.AdamW, **{"lr": 1e-3, "weight_decay": 0.01, **given})


@pytest.mark.parametrize(
    ("own", "lr", "expected"),
    [
        (1e-3, None, 1e-6),  # torch's default is nobody's choice
        (1e-3, 5e-5, 5e-5),
        (3e-4, None, 3e-4),
        (3e-4, 1e-5, 1e-5),
        (1e-3, 0.0, 0.0),
    ],
)
def test_a_default_learning_rate_counts_as_not_chosen(own: float, lr: float | None, expected: float) -> None:
    assert chosen_lr(adamw(lr=own), lr) == expected


def test_a_factory_of_the_users_own_gets_the_rate() -> None:
    assert chosen_lr(lambda parameters, lr: torch.optim.SGD(parameters, lr=lr), None) == 1e-6  # type: ignore[arg-type]
