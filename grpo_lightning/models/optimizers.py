"""The optimizer, the learning rate that was meant, and its schedule."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import get_scheduler

from grpo_lightning.errors import UserError

DEFAULT_LR = 1e-6
SCHEDULES = {
    "constant",
    "constant_with_warmup",
    "cosine",
    "cosine_with_min_lr",
    "cosine_with_restarts",
    "inverse_sqrt",
    "linear",
    "polynomial",
    "warmup_stable_decay",
}
"""Those of ``transformers.get_scheduler`` that are a function of the step alone."""


class ParameterGroup(NamedTuple):
    """Parameters with a learning rate of their own, whose gradients are clipped by themselves."""

    module: nn.Module
    """Its parameters that require a gradient are trained."""
    prefix: str = ""
    """What the names of its figures begin with: ``{prefix}grad_norm``, ``{prefix}learning_rate``."""
    lr: float | None = None
    """None is the run's."""


def make_optimizer(
    groups: Sequence[ParameterGroup], factory: Callable[..., Optimizer] | None, *, lr: float | None
) -> Optimizer:
    """One optimizer of all groups.

    Args:
        groups: what is trained.
        factory: the user's own optimizer class with its arguments; None is AdamW without weight decay.
        lr: ``--model.lr``.
    """
    factory = factory or functools.partial(AdamW, weight_decay=0.0)
    base = chosen_lr(factory, lr)
    parameters = [
        {"params": [p for p in module.parameters() if p.requires_grad], "lr": base if own is None else own}
        for module, _, own in groups
    ]
    return factory(parameters, lr=base)


def chosen_lr(factory: Callable[..., Optimizer], lr: float | None) -> float:
    """The learning rate that the user chose for an optimizer of their own.

    The command line fills in every default of an optimizer class, torch's 1e-3 among them, which would silently train
    a thousand times too fast; so a default counts as not chosen.

    Args:
        factory: the class with its arguments.
        lr: ``--model.lr``; wins over the optimizer's own.
    """
    if lr is not None:
        return lr
    if not isinstance(factory, functools.partial):
        return DEFAULT_LR
    kind = next((a for a in factory.args if isinstance(a, type)), factory.func)
    default = inspect.signature(kind).parameters["lr"].default
    own = factory.keywords.get("lr", default)
    return DEFAULT_LR if own == default else own


def make_scheduler(
    optimizer: Optimizer, kind: str, *, total_steps: int, warmup_ratio: float, options: dict[str, Any] | None
) -> LambdaLR:
    """A schedule of ``transformers.get_scheduler``.

    Args:
        optimizer: whose learning rates are scaled.
        kind: one of ``SCHEDULES``.
        total_steps: optimizer steps of the whole run.
        warmup_ratio: share of them in which the rate rises from 0.
        options: further arguments of the schedule.

    Raises:
        UserError: if the options do not fit the schedule.
    """
    # Plain "constant" ignores a warm-up without a word.
    name = "constant_with_warmup" if kind == "constant" else kind
    try:
        return get_scheduler(
            name,
            optimizer,
            num_warmup_steps=round(warmup_ratio * total_steps),
            num_training_steps=total_steps,
            scheduler_specific_kwargs=options,
        )
    except (TypeError, ValueError) as error:
        raise UserError(
            f"--model.lr_scheduler_kwargs {options or {}} does not fit --model.lr_scheduler_type {kind}: {error}"
        ) from error
