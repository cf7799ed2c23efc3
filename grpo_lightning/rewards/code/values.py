"""Values of Python as JSON and back, by exact type: what comes out is plain data, whatever made it.

Standard library only; numpy is used where a value is numpy's. Reports to the trainer have a form of their own.
"""

from __future__ import annotations

import builtins
import importlib
from collections.abc import Callable
from typing import Any

# Types of the standard library that are plain data: how one is taken apart, and the call that puts it together.
_DATA: dict[str, tuple[str, Callable[[Any], tuple[Any, ...]]]] = {
    "datetime.date": ("fromisoformat", lambda value: (value.isoformat(),)),
    "datetime.datetime": ("fromisoformat", lambda value: (value.isoformat(),)),
    "datetime.time": ("fromisoformat", lambda value: (value.isoformat(),)),
    "datetime.timedelta": ("", lambda value: (value.days, value.seconds, value.microseconds)),
    "decimal.Decimal": ("", lambda value: (str(value),)),
    "fractions.Fraction": ("", lambda value: (value.numerator, value.denominator)),
    "collections.deque": ("", lambda value: (list(value), value.maxlen)),
    "collections.Counter": ("", lambda value: (dict(value),)),
    "collections.OrderedDict": ("", lambda value: (list(value.items()),)),
    "collections.defaultdict": ("", lambda value: (None, dict(value))),
}
_SEQUENCES: dict[Any, str] = {list: "list", tuple: "tuple", set: "set", frozenset: "frozenset"}
_BUILTIN_TYPES: dict[str, Any] = {kind.__name__: kind for kind in vars(builtins).values() if type(kind) is type}


def encode(value: Any, other: Callable[[Any], Any]) -> Any:
    """A value as JSON.

    Args:
        value: anything.
        other: makes a tagged list of what is no plain data.
    """
    kind: Any = type(value)
    if value is None or kind in (bool, float, str):
        return value
    if kind is int:
        return value if -(10**18) < value < 10**18 else ["int", hex(value)]
    if kind in _SEQUENCES:
        return [_SEQUENCES[kind], [encode(entry, other) for entry in value]]
    if kind is dict:
        return ["dict", [[encode(key, other), encode(entry, other)] for key, entry in value.items()]]
    if kind is complex:
        return ["complex", value.real, value.imag]
    if kind in (bytes, bytearray):
        return [kind.__name__, value.hex()]
    if kind in (range, slice):
        return [kind.__name__, *(encode(part, other) for part in (value.start, value.stop, value.step))]
    if kind is type and value in _BUILTIN_TYPES.values():
        return ["type", value.__name__]
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name in _DATA:
        return ["data", name, encode(_DATA[name][1](value), other)]
    if kind.__module__ == "numpy" and hasattr(value, "dtype"):
        shape = list(value.shape)
        if value.dtype.hasobject:
            return ["objects", shape, [encode(entry, other) for entry in value.ravel().tolist()]]
        return ["array" if kind.__qualname__ == "ndarray" else "scalar", value.dtype.str, shape, value.tobytes().hex()]
    return other(value)


def decode(value: Any, other: Callable[[Any], Any]) -> Any:
    """The value of what ``encode`` gave.

    Args:
        value: JSON.
        other: makes a value of the tagged lists that ``encode``'s ``other`` made.
    """
    if not isinstance(value, list):
        return value
    kind, *parts = value
    if kind in ("list", "tuple", "set", "frozenset"):
        make: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
        return make[kind]([decode(entry, other) for entry in parts[0]])
    if kind == "dict":
        return {decode(key, other): decode(entry, other) for key, entry in parts[0]}
    if kind == "int":
        return int(parts[0], 16)
    if kind == "complex":
        return complex(*parts)
    if kind in ("bytes", "bytearray"):
        return bytes.fromhex(parts[0]) if kind == "bytes" else bytearray.fromhex(parts[0])
    if kind in ("range", "slice"):
        return (range if kind == "range" else slice)(*(decode(part, other) for part in parts))
    if kind == "type":
        return _BUILTIN_TYPES[parts[0]]
    if kind == "data":
        return _data(parts[0], decode(parts[1], other))
    if kind in ("array", "scalar", "objects"):
        return _array(kind, parts, other)
    return other(value)


def _data(name: str, arguments: Any) -> Any:
    method = _DATA[name][0]
    module, _, kind = name.partition(".")
    make = getattr(importlib.import_module(module), kind)
    return (getattr(make, method) if method else make)(*arguments)


def _array(kind: str, parts: list[Any], other: Callable[[Any], Any]) -> Any:
    numpy = importlib.import_module("numpy")
    if kind == "objects":
        array = numpy.empty(len(parts[1]), dtype=object)
        array[:] = [decode(entry, other) for entry in parts[1]]
        return array.reshape(parts[0])
    array = numpy.frombuffer(bytearray.fromhex(parts[2]), dtype=numpy.dtype(parts[0])).reshape(parts[1])
    return array[()] if kind == "scalar" else array


def reported(value: Any) -> Any:
    """A value as JSON for the trainer, which has Python's own types only; what is no plain data keeps its type's name.

    Subclasses of plain types count as these types, numpy's numbers as Python's.
    """
    if type(value).__module__ == "numpy" and hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if -(10**18) < value < 10**18 else ["int", hex(value)]
    for kind in (float, str):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, complex):
        return ["complex", value.real, value.imag]
    if isinstance(value, bytes | bytearray):
        return ["bytes", value.hex()]
    if isinstance(value, dict):
        return ["dict", [[reported(key), reported(entry)] for key, entry in value.items()]]
    for name, sequence in (("list", list), ("tuple", tuple), ("set", (set, frozenset, type({}.keys())))):
        if isinstance(value, sequence):
            return [name, [reported(entry) for entry in value]]
    if type(value).__module__ in ("fractions", "decimal") and hasattr(value, "as_integer_ratio"):
        return ["ratio", *(hex(part) for part in value.as_integer_ratio())]
    return ["other", type(value).__name__]
