"""The optimizer, the learning rate that was meant, and its schedule."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import get_scheduler

from grpo_lightning.errors import UserError

log = logging.getLogger(__name__)
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
    return factory(parameters, lr=base, **one_kernel(factory))


def one_kernel(factory: Callable[..., Optimizer]) -> dict[str, bool]:
    """``fused=True`` for torch's Adam and AdamW, unless the user has chosen.

    On CPUs torch's own default goes through each weight several times, by way of two tensors of its size: for a large
    embedding four times as long, and memory that no gradient needs.
    """
    if not isinstance(factory, functools.partial):
        return {}
    kind, given = optimizer_class(factory), factory.keywords
    chosen = any(given.get(name) for name in ("foreach", "differentiable")) or given.get("fused") is not None
    return {} if chosen or kind not in (Adam, AdamW) else {"fused": True}


def optimizer_class(factory: functools.partial[Optimizer]) -> Any:
    """The class of a factory of the command line's, which may be its first argument."""
    return next((a for a in factory.args if isinstance(a, type)), factory.func)


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
    default = inspect.signature(optimizer_class(factory)).parameters["lr"].default
    own = factory.keywords.get("lr", default)
    return DEFAULT_LR if own == default else own


def forget_moments(
    checkpoint: dict[str, Any], factory: Callable[..., Optimizer] | None, *, device: torch.device | None = None
) -> None:
    """Leave out of a checkpoint, in place, what another kind of optimizer keeps of past gradients; see ``fits``.

    Args:
        checkpoint: Lightning's.
        factory: as in ``make_optimizer``.
        device: of the parameters.
    """
    for saved in checkpoint.get("optimizer_states", []):
        kept = {name for state in saved["state"].values() for name in state}
        if kept and not fits(kept, factory, device=device):
            saved["state"] = {}


def fits(kept: set[str], factory: Callable[..., Optimizer] | None, *, device: torch.device | None = None) -> bool:
    """True if an optimizer can go on with what a checkpoint has of it; else that is said, and it begins anew.

    AdamW's second moment is of no use to SGD, whose momentum AdamW would look for in vain; nor has a checkpoint the
    maximum that ``amsgrad`` needs where it was off before. What an optimizer keeps shows in a trial step.

    Args:
        kept: names of what the checkpoint has for each parameter, such as ``exp_avg``.
        factory: as in ``make_optimizer``.
        device: of the parameters.
    """
    factory = factory or AdamW
    one = nn.Parameter(torch.zeros(1, 1, device=device))
    one.grad = torch.zeros_like(one)
    try:
        optimizer = factory([{"params": [one], "lr": DEFAULT_LR}], lr=DEFAULT_LR)
        optimizer.step()
    except Exception:  # it wants other parameters than this one, so nothing is known of it
        return True
    needed = {name for name, value in optimizer.state[one].items() if value is not None}
    if needed and needed <= kept:
        return True
    log.warning(
        "the checkpoint's optimizer has kept %s, and %s needs %s: it begins anew, from the weights alone",
        ", ".join(sorted(kept)), type(optimizer).__name__, ", ".join(sorted(needed)) or "none of it",
    )  # fmt: skip
    return False


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
