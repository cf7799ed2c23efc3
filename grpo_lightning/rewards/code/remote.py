"""The test's end of a link: objects of the solution as the test sees them.

What is done with such an object is done where it lives, and comes back as plain data. But no operator between it and a
value of the test's is left to the solution, or ``__eq__`` and ``__sub__`` of a class could feign any result. Two
exceptions: an object of a class under test (see ``places.class_names``), as in ``Vector(1, 2) * 3 == Vector(3, 6)``,
and two objects, which are both the solution's anyway. Objects made from plain types (``namedtuple``,
``IntEnum``) are computed with as these types are.
"""

from __future__ import annotations

import importlib
import operator
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from grpo_lightning.rewards.code.link import BINARY, KNOWN_MODULES, UNARY, Link, importable

_MUTABLE = (list, dict, set)


class Remote:
    """An object of the solution.

    Args:
        link: the test's end.
        number: of the object.
    """

    __slots__ = ("_remote_free", "_remote_link", "_remote_makes", "_remote_number")
    __array_ufunc__ = None  # numpy leaves operators to this class

    def __init__(self, link: TestEnd, number: int) -> None:
        parts = {"link": link, "number": number, "free": False, "makes": False}
        for name, value in parts.items():
            object.__setattr__(self, f"_remote_{name}", value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__name__", "__doc__"):
            raise AttributeError(name)
        return self._remote_link.request("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._remote_link.request("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        self._remote_link.request("delattr", self, name)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        may_change = any(type(argument) in _MUTABLE or hasattr(argument, "flags") for argument in arguments)
        result, left = self._remote_link.request("call", self, arguments, named, may_change)
        for argument, now in zip(arguments, left or (), strict=False):
            _assign(argument, now)
        if self._remote_makes and isinstance(result, Remote):
            object.__setattr__(result, "_remote_free", True)
        return result

    def __contains__(self, value: Any) -> bool:
        if self._remote_free or isinstance(value, Remote):
            return bool(self._remote_link.request("contains", self, value))
        return any(value is entry or value == entry for entry in self)

    def __iter__(self) -> Iterator[Any]:
        return self._remote_link.request("iter", self)

    def __instancecheck__(self, value: Any) -> bool:
        return isinstance(value, Remote) and bool(self._remote_link.request("isinstance", value, self))

    def __subclasscheck__(self, value: Any) -> bool:
        return isinstance(value, Remote) and bool(self._remote_link.request("issubclass", value, self))

    def __exit__(self, *_: object) -> None:
        self._remote_link.request("exit", self)

    def __deepcopy__(self, _: Any) -> Any:
        return self._remote_link.request("deepcopy", self)


def _assign(old: Any, new: Any) -> None:
    """Make a list, dict, set or array of the test's what the solution has left of it."""
    if type(old) is not type(new):
        return
    if isinstance(old, list):
        old[:] = new
    elif isinstance(old, dict | set):
        old.clear()
        old.update(new)
    elif hasattr(old, "flags") and old.shape == new.shape and old.flags.writeable:
        old[...] = new


def _asked(action: str) -> Callable[..., Any]:
    return lambda self, *arguments: self._remote_link.request(action, self, *arguments)


def unwrapped(value: Any) -> Any:
    """An object made from a plain type as that type; also in lists, tuples and dicts."""
    if isinstance(value, Remote):
        data = value._remote_link.request("data", value)
        return unwrapped(data[0]) if data else value
    if type(value) in (list, tuple):
        return type(value)(map(unwrapped, value))
    if type(value) is dict:
        return {unwrapped(key): unwrapped(entry) for key, entry in value.items()}
    return value


def _computed(action: str, *values: Any) -> Any:
    remotes = [value for value in values if isinstance(value, Remote)]
    free = any(value._remote_free for value in remotes)
    if free or len(remotes) == len(values) == 2:
        result = remotes[0]._remote_link.request(action, *values)
        if free and isinstance(result, Remote):
            object.__setattr__(result, "_remote_free", True)
        return result
    plain = [unwrapped(value) for value in values]
    return NotImplemented if any(isinstance(one, Remote) for one in plain) else getattr(operator, action)(*plain)


def _binary(action: str, *, reflected: bool = False) -> Callable[[Any, Any], Any]:
    return lambda self, other: _computed(action, other, self) if reflected else _computed(action, self, other)


def _unary(action: str) -> Callable[[Any], Any]:
    def computed(self: Any) -> Any:
        result = _computed(action, self)
        if result is NotImplemented:
            raise TypeError(f"{action} of an object of the solution")
        return result

    return computed


for _name in BINARY:
    _bare = _name.strip("_")
    setattr(Remote, f"__{_bare}__", _binary(_name))
    if _name not in ("eq", "ne", "lt", "le", "gt", "ge"):
        setattr(Remote, f"__r{_bare}__", _binary(_name, reflected=True))
for _name in UNARY:
    setattr(Remote, f"__{_name}__", _unary(_name))
_PLAIN = "bool int float str repr len hash next round format reversed index getitem setitem delitem enter copy"
for _name in _PLAIN.split():
    setattr(Remote, f"__{_name}__", _asked(_name))


class TestEnd(Link):
    """The test's end.

    Args:
        channel: to the solution.
        classes: names of the classes under test.
    """

    __test__ = False

    def __init__(self, channel: socket.socket, classes: Sequence[str]) -> None:
        super().__init__(channel)
        self.classes = classes
        self.remotes: dict[int, Remote] = {}
        self.exceptions: dict[int, type] = {}
        # The solution may do nothing here but use the functions and iterators that it was given.
        self.actions = {"call": self._called, "next": self._next}

    def names(self, names: list[str]) -> dict[str, Any]:
        """What the solution has under these names."""
        found: dict[str, Any] = self.request("names", names)
        for name, value in found.items():
            if isinstance(value, Remote) and name in self.classes:
                object.__setattr__(value, "_remote_makes", True)
        return found

    def _called(self, number: int, arguments: Any, named: Any) -> Any:
        return self.kept[number](*arguments, **named)

    def _next(self, number: int) -> list[Any] | None:
        for value in self.kept[number]:
            return [value]
        return None

    def foreign(self, value: Any) -> Any:
        if isinstance(value, Remote):
            return ["yours", value._remote_number]
        if isinstance(value, type) and (number := getattr(value, "_remote_number", None)) is not None:
            return ["yours", number]
        if (place := importable(value)) is not None:
            return ["global", *place]
        if callable(value):
            return ["function", self.number(value)]
        if hasattr(value, "__next__"):
            return ["iterator", self.number(value)]
        raise TypeError(f"{type(value).__name__} cannot be given to the solution")

    def made(self, tagged: Any) -> Any:
        kind, *parts = tagged
        if kind == "yours":
            return self.kept[parts[0]]
        if kind == "exception":
            return self._exception(*parts)
        if kind == "module" and parts[0].partition(".")[0] in KNOWN_MODULES:  # not as the solution may have left it
            return importlib.import_module(parts[0])
        remote = self.remotes.setdefault(parts[-1], Remote(self, parts[-1]))
        return self._awaited(remote) if kind == "coroutine" else remote

    def _exception(self, name: str, number: int, base: Any) -> type:
        """For an exception class of the solution's, one of the same name, so that ``except`` finds it."""
        if number not in self.exceptions:
            self.exceptions[number] = type(name, (self.decode(base),), {"_remote_number": number})
        return self.exceptions[number]

    async def _awaited(self, remote: Remote) -> Any:
        return self.request("awaited", remote)
