"""Two processes that call each other: the solution's, and that of the test, which no object of the solution enters.

The test sees plain values; every other object of the solution it sees as a ``Remote`` (see ``remote``), by number. The
solution sees plain values, and functions and iterators of the test as functions and iterators that ask back.
"""

from __future__ import annotations

import copy
import importlib
import json
import operator
import socket
import struct
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from grpo_lightning.rewards.code.values import decode, encode

MESSAGE_LIMIT = 8 << 20
"""Bytes of one message."""
KNOWN_MODULES = frozenset(
    "__future__ abc bisect cmath collections copy datetime decimal fractions functools heapq itertools json math "  # noqa: SIM905
    "numpy operator pytest random re statistics string time typing unittest".split()
)
"""Modules that a test may use in a process of its own: their values are plain data, or stay in the test."""
_BASES: Any = (int, float, complex, str, bytes, list, tuple, set, frozenset, dict)


class Link:
    """One end.

    Args:
        channel: to the other end.
    """

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.kept: list[Any] = []
        self.numbers: dict[int, int] = {}
        self.actions: dict[str, Callable[..., Any]] = {}

    def number(self, value: Any) -> int:
        """The number by which the other end knows an object of this end; the object is kept."""
        if id(value) not in self.numbers:
            self.numbers[id(value)] = len(self.kept)
            self.kept.append(value)
        return self.numbers[id(value)]

    def request(self, action: str, *arguments: Any, **named: Any) -> Any:
        """Have the other end do something; its exceptions are raised here."""
        self.channel.sendall(self._packed(["ask", action, self.encode(arguments), self.encode(named)]))
        while True:
            kind, *parts = self._receive()
            if kind == "ask":
                self.answer(*parts)
            elif kind == "error":
                raise self.error(*parts)
            else:
                return self.decode(parts[0])

    def answer(self, action: str, arguments: Any, named: Any) -> None:
        """Do what the other end asks for."""
        try:
            result = self.actions[action](*self.decode(arguments), **self.decode(named))
            message = self._packed(["value", self.encode(result)])
        except BaseException as error:
            arguments = [self._plain(part) for part in error.args]
            message = self._packed(["error", self.encode(type(error)), self.encode(arguments)])
        self.channel.sendall(message)

    def serve(self) -> None:
        """Answer until the other end is gone."""
        while True:
            _, *parts = self._receive()
            self.answer(*parts)

    def encode(self, value: Any) -> Any:
        """As JSON."""
        return encode(value, self.foreign)

    def decode(self, value: Any) -> Any:
        """From JSON."""
        return decode(value, self.made)

    def foreign(self, value: Any) -> Any:
        """What is no plain data, as a tagged list."""
        raise NotImplementedError

    def made(self, tagged: Any) -> Any:
        """What the other end's ``foreign`` stands for."""
        raise NotImplementedError

    def error(self, kind: Any, arguments: Any) -> BaseException:
        """The other end's exception."""
        made = self.decode(kind)
        if not (isinstance(made, type) and issubclass(made, BaseException)):
            made = Exception
        try:
            return made(*self.decode(arguments))
        except TypeError:
            return RuntimeError(made.__name__)

    @staticmethod
    def _plain(value: Any) -> Any:
        return value if isinstance(value, str | int | float) else str(value)

    @staticmethod
    def _packed(message: Any) -> bytes:
        payload = json.dumps(message).encode()
        if len(payload) > MESSAGE_LIMIT:
            raise MemoryError("a value is too large")
        return struct.pack("!I", len(payload)) + payload

    def _receive(self) -> Any:
        (size,) = struct.unpack("!I", self._read(4))
        if size > MESSAGE_LIMIT:
            raise MemoryError("a value is too large")
        return json.loads(self._read(size))

    def _read(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            part = self.channel.recv(size - len(parts))
            if not part:
                raise EOFError("the other process has ended")
            parts += part
        return bytes(parts)


class SolutionEnd(Link):
    """The solution's end.

    Args:
        channel: to the test.
        solution: the module.
    """

    def __init__(self, channel: socket.socket, solution: types.ModuleType) -> None:
        super().__init__(channel)
        self.solution = solution
        self.of_test: dict[int, int] = {}
        self.borrowed: list[Any] = []
        self.actions = {**ACTIONS, "names": self._names, "call": self._called}

    def _names(self, names: list[str]) -> dict[str, Any]:
        known = {"solution": self.solution, **vars(self.solution)}
        return {name: known[name] for name in names if name in known}

    @staticmethod
    def _called(function: Any, arguments: Any, named: Any, give_back: bool) -> Any:
        """The result, and the arguments as the call left them: lists may be sorted in place."""
        result = function(*arguments, **named)
        return result, (list(arguments) if give_back else None)

    def foreign(self, value: Any) -> Any:
        if id(value) in self.of_test:
            return ["yours", self.of_test[id(value)]]
        if isinstance(value, type) and issubclass(value, BaseException):
            return ["exception", value.__name__, self.number(value), self.encode(value.__base__)]
        if isinstance(value, types.ModuleType) and value is not self.solution:
            return ["module", value.__name__, self.number(value)]
        return ["coroutine" if isinstance(value, types.CoroutineType) else "object", self.number(value)]

    def made(self, tagged: Any) -> Any:
        kind, *parts = tagged
        if kind == "yours":
            return self.kept[parts[0]]
        if kind == "global":
            return operator.attrgetter(parts[1])(importlib.import_module(parts[0]))
        value = self._function(parts[0]) if kind == "function" else self._iterator(parts[0])
        self.of_test[id(value)] = parts[0]
        self.borrowed.append(value)
        return value

    def _function(self, number: int) -> Callable[..., Any]:
        return lambda *arguments, **named: self.request("call", number, arguments, named)

    def _iterator(self, number: int) -> Iterator[Any]:
        while (part := self.request("next", number)) is not None:
            yield part[0]


def _data(value: Any) -> Any:
    """The plain data in an object whose class is made from a plain type, in a list; None if it is not."""
    for base in _BASES:
        if isinstance(value, base):
            return [base(value)]
    return None


BINARY = "eq ne lt le gt ge add sub mul truediv floordiv mod pow matmul and_ or_ xor lshift rshift".split()  # noqa: SIM905
UNARY = ("neg", "pos", "abs", "invert")
_OF_OPERATOR = (*BINARY, *UNARY, "contains", "index", "getitem", "setitem", "delitem")
_OF_PYTHON = (bool, int, float, str, repr, len, hash, iter, next, round, format, reversed)
ACTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in _OF_OPERATOR},
    **{function.__name__: function for function in _OF_PYTHON},
    **{function.__name__: function for function in (getattr, setattr, delattr, issubclass, copy.copy, copy.deepcopy)},
    "isinstance": lambda value, kind: isinstance(value, kind),
    "enter": lambda value: value.__enter__(),
    "exit": lambda value: value.__exit__(None, None, None),
    "awaited": lambda value: importlib.import_module("asyncio").run(value),
    "data": _data,
}
"""What can be done with an object of the solution, where it lives."""


def importable(value: Any) -> tuple[str, str] | None:
    """Module and name under which both ends find a function or class of a library."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module not in sys.modules:
        return None
    try:
        found = operator.attrgetter(name)(sys.modules[module])
    except AttributeError:
        return None
    return (module, name) if found is value else None
