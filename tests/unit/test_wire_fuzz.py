"""Every message of the table, whole and damaged: the codec gives a well-typed message or a RemoteError.

Strategies and the type check below are built from the messages' own type hints, so that a new message is
covered on the day it is written. `conforms` is the dumb second opinion on what the codec lets through.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from enum import IntEnum
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shoal.node.experts.questions
import shoal.node.ipc.messages
import shoal.protocol.messages  # noqa: F401  (importing fills the table)
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import DIGEST_SIZE, Digest, PeerId, RunId
from shoal.protocol.base.wire import MAX_INT, MAX_STRING, Message, Payload, decode, encode, table

BOB = PeerId("bob")
A_FEW = settings(max_examples=settings().max_examples // 4)  # of each message
MANY = settings(max_examples=settings().max_examples * 5)
MESSAGES = [pytest.param(kind, id=kind.__name__) for kind in table().values()]


# -- from type hints ----------------------------------------------------------------------------------------

STRATEGIES: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(0, MAX_INT),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    type(None): st.none(),
    str: st.text(max_size=12),
    bytes: st.binary(max_size=40),
    Payload: st.binary(max_size=40),
    PeerId: st.text(max_size=12),
    Digest: st.binary(min_size=DIGEST_SIZE, max_size=DIGEST_SIZE),
    RunId: st.binary(min_size=DIGEST_SIZE, max_size=DIGEST_SIZE),
}


def well_typed(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a type hint."""
    if hint not in STRATEGIES:
        STRATEGIES[hint] = compound(hint)
    return STRATEGIES[hint]


def compound(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a type hint that is made of others."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return st.one_of(*map(well_typed, args))
    if origin is tuple and args[-1] is Ellipsis:
        return st.lists(well_typed(args[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(well_typed, args))
    if issubclass(hint, IntEnum):
        return st.sampled_from(hint)
    hints = typing.get_type_hints(hint)
    fields = {field.name: well_typed(hints[field.name]) for field in dataclasses.fields(hint)}
    return st.builds(hint, **fields)


def conforms(item: Any, hint: Any) -> bool:
    """Whether a decoded item is what its type hint promises."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint in (Digest, RunId):
        return type(item) is bytes and len(item) == DIGEST_SIZE
    if hint in (str, PeerId):
        return type(item) is str and len(item) <= MAX_STRING
    if hint is int:
        return type(item) is int and 0 <= item <= MAX_INT
    if hint is float:
        return type(item) is float and math.isfinite(item)
    if hint == Payload:
        return isinstance(item, Payload)
    if hint in (bool, bytes, type(None)):
        return type(item) is hint
    if origin in (types.UnionType, typing.Union):
        return any(conforms(item, arg) for arg in args)
    if origin is tuple:
        hints = args[:1] * len(item) if args[-1] is Ellipsis else args
        return len(item) == len(hints) and all(map(conforms, item, hints))
    if issubclass(hint, IntEnum):
        return type(item) is hint
    inner = typing.get_type_hints(hint)
    return type(item) is hint and all(
        conforms(getattr(item, field.name), inner[field.name]) for field in dataclasses.fields(hint)
    )


def assert_total(data: bytes) -> None:
    """`data` gives a well-typed message that survives the wire, or a RemoteError that names the sender."""
    try:
        decoded = decode(data, BOB)
    except RemoteError as error:
        blamed = error.peer
    else:
        assert conforms(decoded, type(decoded))
        assert decode(encode(decoded)) == decoded
        return
    assert blamed == BOB


# -- every message of the table -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", MESSAGES)
@given(data=st.data())
@A_FEW
def test_every_message_survives_the_wire(kind: type[Message], data: st.DataObject) -> None:
    sent = data.draw(well_typed(kind))
    received = decode(encode(sent))
    assert received == sent
    assert encode(received) == encode(sent)
    assert conforms(received, kind)


@pytest.mark.parametrize("kind", MESSAGES)
@given(data=st.data())
@A_FEW
def test_a_truncated_or_extended_message_is_refused(kind: type[Message], data: st.DataObject) -> None:
    whole = encode(data.draw(well_typed(kind)))
    cut = data.draw(st.integers(0, len(whole) - 1))
    more = data.draw(st.binary(min_size=1, max_size=8))
    for broken in (whole[:cut], whole + more):
        with pytest.raises(RemoteError):
            decode(broken, BOB)


@pytest.mark.parametrize("kind", MESSAGES)
@given(data=st.data())
@A_FEW
def test_a_message_with_changed_bytes_is_well_typed_or_refused(kind: type[Message], data: st.DataObject) -> None:
    damaged = bytearray(encode(data.draw(well_typed(kind))))
    places = st.lists(st.integers(0, len(damaged) - 1), min_size=1, max_size=4)
    for place in data.draw(places):
        damaged[place] = data.draw(st.integers(0, 255))
    assert_total(bytes(damaged))


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=6,
)


@pytest.mark.parametrize("kind", MESSAGES)
@given(data=st.data())
@A_FEW
def test_a_message_with_an_item_replaced_is_well_typed_or_refused(kind: type[Message], data: st.DataObject) -> None:
    items = msgpack.unpackb(encode(data.draw(well_typed(kind))))
    target = items
    while True:
        place = data.draw(st.integers(0, len(target) - 1))
        if not isinstance(target[place], list) or not target[place] or data.draw(st.booleans()):
            break
        target = target[place]
    target[place] = data.draw(ANYTHING)
    assert_total(msgpack.packb(items))


@given(st.binary(max_size=200))
@MANY
def test_random_bytes_are_refused_or_well_typed(data: bytes) -> None:
    assert_total(data)


@given(st.sampled_from(sorted(table())), st.lists(ANYTHING, max_size=14))
@MANY
def test_a_known_tag_with_random_items_is_refused_or_well_typed(tag: int, items: list[Any]) -> None:
    assert_total(msgpack.packb([tag, *items]))
