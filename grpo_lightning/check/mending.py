"""Goes on after a mistake that keeps a run from being built: the option is set to its default, and the rest looked at.

Building a run stops at the first value that a class refuses. Its message begins with the option, so that the option can
be set back, the mistake kept, and the same tried again.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

from grpo_lightning.cli_classes import named_class, parameters_of
from grpo_lightning.errors import UserError

NO_DEFAULT = inspect.Parameter.empty
FLAG = re.compile(r"--([\w.]+)")


class NotMendable(Exception):
    """What is wrong has no default to go on with: nothing more can be built."""


def mend(build: Callable[[], None], config: Any, defaults: Any) -> Iterator[str]:
    """Build, as often as it takes.

    Args:
        build: raises ``UserError``, perhaps inside another error, at a mistake.
        config: that it builds from; changed in place.
        defaults: of the options, where they do not depend on a class that is named.

    Yields:
        Each mistake, in one line.

    Raises:
        NotMendable: after the last mistake, if it has no default.
    """
    mended = set()
    while (mistake := _tried(build)) is not None:
        yield mistake
        flag = FLAG.match(mistake)
        if flag is None or flag[1] in mended or not set_back(config, flag[1], defaults):
            raise NotMendable
        mended.add(flag[1])


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


def set_back(config: Any, option: str, defaults: Any) -> bool:
    """Give an option its default; False if it has none.

    Args:
        config: of the run.
        option: ``model.lr``; the ``init_args`` in between are not written out.
        defaults: as in ``mend``.
    """
    *groups, name = option.split(".")
    place, default = config, defaults
    for group in groups:
        place, default = _inside(place).get(group), _get(default, group)
        if not hasattr(place, "get"):
            return False
    named = place.get("class_path")
    parameter = parameters_of(named_class(named)).get(name) if named else None
    found = parameter.default if parameter else _get(default, name)
    if found is NO_DEFAULT or name not in _inside(place):
        return False
    _inside(place)[name] = found
    return True


def _get(defaults: Any, name: str) -> Any:
    return defaults.get(name, NO_DEFAULT) if hasattr(defaults, "get") else NO_DEFAULT


def _inside(place: Any) -> Any:
    """Where the options of a group stand: of a class, in ``init_args``."""
    return place["init_args"] if place.get("class_path") is not None and place.get("init_args") else place
