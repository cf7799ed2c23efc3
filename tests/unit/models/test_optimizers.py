"""The learning rate that the user chose, and its schedule by hand."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from grpo_lightning.errors import UserError
from grpo_lightning.models.optimizers import (
    ParameterGroup,
    chosen_lr,
    fits,
    forget_moments,
    make_optimizer,
    make_scheduler,
)


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


def test_each_group_has_its_own_rate_and_only_what_is_trained() -> None:
    policy, critic = torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)
    policy.bias.requires_grad_(False)
    groups = [ParameterGroup(policy), ParameterGroup(critic, prefix="critic/", lr=0.3)]
    optimizer = make_optimizer(groups, None, lr=None)
    assert isinstance(optimizer, torch.optim.AdamW)
    assert [(g["lr"], g["weight_decay"], len(g["params"])) for g in optimizer.param_groups] == [
        (1e-6, 0, 1),
        (0.3, 0, 2),
    ]
    own = make_optimizer(groups, adamw(lr=2e-5), lr=None)
    assert [(g["lr"], g["weight_decay"]) for g in own.param_groups] == [(2e-5, 0.01), (0.3, 0.01)]
    (alone,) = make_optimizer(groups[:1], adamw(), lr=0.0).param_groups
    assert alone["lr"] == 0.0


def after_a_step(factory: partial) -> tuple[torch.optim.Optimizer, torch.nn.Parameter]:
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = factory([parameter])
    parameter.grad = torch.ones(2)
    optimizer.step()
    return optimizer, parameter


SGD, ADAM, ADAMW, RMSPROP = (
    partial(kind, lr=0.1) for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop)
)


@pytest.mark.parametrize(
    ("before", "now", "goes_on"),
    [
        (ADAMW, ADAMW, True),
        (ADAM, ADAMW, True),
        (partial(ADAMW, amsgrad=True), ADAMW, True),
        (ADAMW, partial(ADAMW, amsgrad=True), False),
        (partial(SGD, momentum=0.9), ADAMW, False),
        (ADAMW, partial(SGD, momentum=0.9), False),
        (ADAMW, SGD, False),
        (partial(SGD, momentum=0.9), partial(SGD, momentum=0.5), True),
        (RMSPROP, partial(RMSPROP, centered=True), False),
    ],
)
def test_another_kind_of_optimizer_begins_anew(
    caplog: pytest.LogCaptureFixture, before: partial, now: partial, goes_on: bool
) -> None:
    checkpoint = {"optimizer_states": [after_a_step(before)[0].state_dict()]}
    forget_moments(checkpoint, now)
    assert bool(checkpoint["optimizer_states"][0]["state"]) == goes_on
    assert ("begins anew, from the weights alone" in caplog.text) != goes_on
    optimizer, parameter = after_a_step(now)
    optimizer.state.clear()
    optimizer.load_state_dict(checkpoint["optimizer_states"][0])
    for group in optimizer.param_groups:
        group.update(optimizer.defaults)  # as the run does at its start
    optimizer.step()
    assert parameter.isfinite().all()


def test_nothing_is_forgotten_of_nothing_nor_of_an_optimizer_that_cannot_be_tried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuses(parameters: object, lr: float) -> torch.optim.Optimizer:
        raise ValueError("give me all of the model")

    forget_moments({}, ADAMW)
    forget_moments({"optimizer_states": [{"state": {}}]}, ADAMW)
    assert fits({"momentum_buffer"}, refuses)
    assert caplog.text == ""


def rates(kind: str, *, steps: int = 10, warmup_ratio: float = 0.2, **options: float) -> list[float]:
    """Learning rates of the steps, the base rate being 1."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = make_scheduler(optimizer, kind, total_steps=steps, warmup_ratio=warmup_ratio, options=options or None)
    seen = []
    for _ in range(steps):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return seen


def test_a_constant_rate_warms_up_too() -> None:
    assert rates("constant") == [0.0, 0.5, *[1.0] * 8]


def test_a_linear_rate_falls_over_the_steps_after_the_warm_up() -> None:
    assert rates("linear") == pytest.approx([0.0, 0.5, 1.0, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8])


def test_a_cosine_rate_ends_at_its_least() -> None:
    seen = rates("cosine_with_min_lr", warmup_ratio=0.0, steps=4, min_lr_rate=0.2)
    # 0.2 + 0.8 (1 + cos(pi t / 4)) / 2
    assert seen == pytest.approx([1.0, 0.2 + 0.4 * (1 + 0.5**0.5), 0.6, 0.2 + 0.4 * (1 - 0.5**0.5)])


def test_options_that_do_not_fit_are_one_line() -> None:
    with pytest.raises(UserError, match=r"--model\.lr_scheduler_kwargs .* does not fit .* cosine_with_min_lr"):
        rates("cosine_with_min_lr")


@pytest.mark.parametrize(
    ("factory", "fused"),
    [
        (None, True),
        (adamw(fused=None, foreach=None), True),
        (partial(torch.optim.Adam), True),
        (adamw(fused=False), False),
        (adamw(foreach=True), None),
        (partial(torch.optim.SGD), None),
        (lambda parameters, lr: torch.optim.AdamW(parameters, lr=lr), None),
    ],
)
def test_adam_takes_its_step_in_one_kernel_unless_another_was_chosen(factory: Any, fused: bool | None) -> None:
    optimizer = make_optimizer([ParameterGroup(torch.nn.Linear(2, 3))], factory, lr=None)
    assert optimizer.defaults["fused"] == fused
