"""What the command line does with classes named in a configuration, beyond what jsonargparse does."""

from __future__ import annotations

import importlib
import inspect
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jsonargparse import _typehints

from grpo_lightning.cli_parser import inside
from grpo_lightning.errors import UserError
from grpo_lightning.models.optimizers import DEFAULT_LR
from grpo_lightning.objectives import Objective

log = logging.getLogger(__name__)


def keep_no_arguments_of_another_objective() -> None:
    """Let an objective that takes another's place begin with its own defaults.

    jsonargparse keeps the arguments that both classes have, which suits optimizers. But a clip range of 0.2 is that of
    a token's ratio, and GSPO's of a sequence is 0.0004: kept in silence, it would be another algorithm.
    """
    discard: Callable[..., None] = _typehints.discard_init_args_on_class_path_change
    if getattr(discard, "of_objectives", False):
        return

    def discard_all(parser_or_action: Any, prev_val: Any, value: Any) -> None:
        discard(parser_or_action, prev_val, value)
        if prev_val and prev_val.get("init_args") and prev_val["class_path"] != value["class_path"]:
            named = named_class(value["class_path"])
            if isinstance(named, type) and issubclass(named, Objective):
                for key in list(prev_val["init_args"].keys()):
                    prev_val["init_args"].pop(key)

    discard_all.of_objectives = True  # type: ignore[attr-defined]
    _typehints.discard_init_args_on_class_path_change = discard_all


def misplaced_nulls(config: Any, flag: str = "-") -> Iterator[str]:
    """Options that are null though their class takes none; jsonargparse lets null pass for anything.

    Args:
        config: a configuration, or a part of it.
        flag: of that part.
    """
    entries = config if isinstance(config, Mapping) else vars(config) if hasattr(config, "__dict__") else {}
    if "class_path" in entries and entries.get("init_args"):
        parameters = parameters_of(named_class(entries["class_path"]))
        inside = entries["init_args"]
        for name, value in (inside if isinstance(inside, Mapping) else vars(inside)).items():
            if value is None and name in parameters and not _may_be_none(parameters[name]):
                yield f"{flag}.{name}"
            yield from misplaced_nulls(value, f"{flag}.{name}")
    elif isinstance(config, list | tuple):
        for number, value in enumerate(config):
            yield from misplaced_nulls(value, f"{flag}.{number}")
    else:
        for name, value in entries.items():
            yield from misplaced_nulls(value, f"--{name}" if flag == "-" else f"{flag}.{name}")


def check_learning_rates(model: Any, words: Sequence[str]) -> None:
    """Tell of an optimizer's own rate that is not the run's (``models.optimizers.chosen_lr`` decides which that is).

    Args:
        model: the parsed group.
        words: of the command line.

    Raises:
        UserError: if ``--model.lr`` and the optimizer's were both chosen and differ.
    """
    lr, optimizer = inside(model).get("lr"), inside(model).get("optimizer")
    own = inside(optimizer).get("lr")
    if own is None or own == lr:
        return
    parameter = parameters_of(named_class(optimizer["class_path"])).get("lr")
    if parameter is None or own != parameter.default:
        if lr is not None:
            raise UserError(
                f"--model.optimizer.lr {own}: --model.lr is {lr}, and one of them was meant; give the rate as "
                "--model.lr (null leaves it to the optimizer)"
            )
    elif lr is None or any(re.match(r"--model\.(init_args\.)?optimizer\.(init_args\.)?lr\b", word) for word in words):
        log.warning(
            "--model.optimizer.lr %s: is the class's default, which counts as not chosen; the run takes %s; give the "
            "rate as --model.lr",
            own, DEFAULT_LR if lr is None else lr,
        )  # fmt: skip


def named_class(path: str) -> Any:
    """What a dotted path names; None if nothing."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError):
        return None


def parameters_of(named: Any) -> dict[str, inspect.Parameter]:
    """Of a class's constructor and of those that it hands its keywords on to."""
    if not isinstance(named, type):
        return {}
    own = [inspect.signature(c.__init__).parameters for c in reversed(named.__mro__) if "__init__" in vars(c)]
    return {name: parameter for parameters in own for name, parameter in parameters.items()}


def _may_be_none(parameter: inspect.Parameter) -> bool:
    kind = str(parameter.annotation)
    return parameter.default is None or any(word in kind for word in ("None", "Optional", "Any", "_empty"))
