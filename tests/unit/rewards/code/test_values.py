"""Values go to another process and come back as they were, by exact type."""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import json

import pytest

from grpo_lightning.rewards.code.values import decode, encode, reported

VALUES = [
    None,
    True,
    -3,
    10**30,
    2.5,
    float("inf"),
    "ä\ud800",
    b"\x00",
    bytearray(b"a"),
    1 + 2j,
    [1, (2, {3}), frozenset({4})],
    {(1, 2): [None], "a": {}},
    range(1, 9, 2),
    int,
    KeyError,
    datetime.date(2020, 1, 1),
    datetime.datetime(2020, 1, 1, 2, 3, 4, 5, datetime.UTC),
    datetime.time(1, 2),
    datetime.timedelta(days=-1, seconds=5),
    decimal.Decimal("1.10"),
    fractions.Fraction(1, 3),
    collections.deque([1, 2], maxlen=3),
    collections.Counter("aab"),
    collections.OrderedDict([("b", 1), ("a", 2)]),
]


def refuse(value):
    raise LookupError(value)


def carried(value):
    return decode(json.loads(json.dumps(encode(value, refuse))), refuse)


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_values_come_back(value):
    back = carried(value)
    assert back == value
    assert type(back) is type(value)


def test_slices_come_back():
    assert [1, 2, 3][carried(slice(1, None))] == [2, 3]


def test_arrays_come_back():
    numpy = pytest.importorskip("numpy")
    for value in (numpy.arange(6.0).reshape(2, 3), numpy.array([], dtype="i2"), numpy.array([1, "a"], dtype=object)):
        back = carried(value)
        assert (back.shape, back.dtype) == (value.shape, value.dtype)
        assert (back == value).all()
    assert carried(numpy.float32(1.5)) == 1.5
    assert type(carried(numpy.float32(1.5))) is numpy.float32


def test_what_is_no_plain_data_is_for_others():
    class Number(int): ...

    class Named:
        __module__, __qualname__ = "os", "system"

    for value in (Number(3), Named(), Number, lambda: None, (n for n in ())):
        with pytest.raises(LookupError):
            encode([value], refuse)
    for tagged in (["data", "os.system", ["tuple", ["true"]]], ["type", "eval"]):
        with pytest.raises(LookupError):
            decode(tagged, refuse)


def test_reports():
    class Number(int): ...

    assert reported([Number(3), collections.Counter("a"), 10**20, b"a", Ellipsis]) == [
        "list",
        [3, ["dict", [["a", 1]]], ["int", hex(10**20)], ["bytes", "61"], ["other", "ellipsis"]],
    ]
    assert reported(fractions.Fraction(1, 2)) == ["ratio", "0x1", "0x2"]
