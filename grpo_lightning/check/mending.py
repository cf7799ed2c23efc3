"""Goes on after a mistake that keeps a run from being built: the option is set to its default, and the rest looked at.

Parsing and building stop at the first value that is refused. Its message begins with the option, so that the option can
be set back, the mistake kept, and the same tried again. What is then said of the default is not the user's mistake.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

from grpo_lightning.check.page import Page
from grpo_lightning.cli_classes import named_class, parameters_of
from grpo_lightning.cli_parser import inside
from grpo_lightning.errors import UserError

NO_DEFAULT = inspect.Parameter.empty
FLAG = re.compile(r"--([\w.]+)")


def build_past_mistakes(build: Callable[[], None], set_back: Callable[[str], bool], page: Page) -> bool:
    """Build, as often as it takes.

    Args:
        build: raises ``UserError``, perhaps inside another error, at a mistake.
        set_back: gives an option, ``model.lr``, its default before the next try; False if it has none.
        page: is told of the mistakes.

    Returns:
        False if nothing can be built.
    """
    while (mistake := _tried(build)) is not None:
        page.note(mistake)
        flag = FLAG.match(mistake)
        if flag is None or flag[0] in page.set_back or not set_back(flag[1]):
            return False
        page.set_back.add(flag[0])
    return True


def _tried(build: Callable[[], None]) -> str | None:
    try:
        build()
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:  # jsonargparse wraps what a constructor raises
            if isinstance(cause, UserError):
                return str(cause)
            cause = cause.__cause__ or cause.__context__
        raise
    return None


def without_option(words: list[str], option: str) -> list[str]:
    """A command line that does not give an option, ``--option value`` or ``--option=value``."""
    found = iter(words)
    kept = []
    for word in found:
        if word == f"--{option}":
            value = next(found, "")
            kept += [value] if value.startswith("--") else []
        elif not word.startswith(f"--{option}="):
            kept.append(word)
    return kept


def set_back(config: Any, option: str, defaults: Any) -> bool:
    """Give an option its default; False if it has none.

    Args:
        config: of the run; changed in place.
        option: ``model.lr``; the ``init_args`` in between are not written out.
        defaults: of the options, where they do not depend on a class that is named.
    """
    *groups, name = option.split(".")
    place, default = config, defaults
    for group in groups:
        place, default = inside(place).get(group), _get(default, group)
        if not hasattr(place, "get"):
            return False
    named = place.get("class_path")
    parameter = parameters_of(named_class(named)).get(name) if named else None
    found = parameter.default if parameter else _get(default, name)
    if found is NO_DEFAULT or name not in inside(place):
        return False
    inside(place)[name] = found
    return True


def _get(defaults: Any, name: str) -> Any:
    return defaults.get(name, NO_DEFAULT) if hasattr(defaults, "get") else NO_DEFAULT
