"""The codec's promises one at a time: which item is refused where, what is no message, what is too much.

`test_wire_fuzz.py` holds the same promises against random and damaged bytes of every message.
"""

from __future__ import annotations

import dataclasses
import math
import tracemalloc
from enum import IntEnum
from typing import Any

import msgpack
import pytest

from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import DIGEST_SIZE, Digest, PeerId, RunId
from shoal.protocol.base.wire import MAX_INT, MAX_ITEMS, MAX_STRING, Message, decode, encode, message, value

BOB = PeerId("bob")


@value
class Part:
    """A value inside `Sample`."""

    peer: PeerId
    share: float


class Code(IntEnum):
    """A code of `Sample`."""

    YES = 0
    NO = 3


@message(9_000)
class Sample(Message):
    """A message with one field for each kind of hint that the codec knows."""

    count: int
    ratio: float
    flag: bool
    text: str
    blob: bytes
    peer: PeerId
    root: Digest
    run: RunId
    maybe: int | None
    parts: tuple[Part, ...]
    pair: tuple[PeerId, tuple[str, ...]]
    last: Part | None
    codes: tuple[Code, ...]


DIGEST = Digest(bytes(DIGEST_SIZE))
PART = Part(BOB, 0.5)
PAIR = BOB, ("a", "b")
CODES = Code.NO, Code.YES
SAMPLE = Sample(1, 0.5, True, "text", b"blob", BOB, DIGEST, RunId(DIGEST), None, (PART, PART), PAIR, PART, CODES)


def test_every_kind_of_field_survives_the_wire() -> None:
    assert decode(encode(SAMPLE)) == SAMPLE


def test_a_peer_takes_memory_once_however_many_messages_name_it() -> None:
    first, second = decode(encode(SAMPLE)), decode(encode(SAMPLE))
    assert isinstance(first, Sample)
    assert isinstance(second, Sample)
    assert first.peer is second.peer is first.parts[0].peer


# -- one field at a time ------------------------------------------------------------------------------------

NO_TEXT: list[Any] = ["x" * (MAX_STRING + 1), b"text", 1, None]
NO_DIGEST: list[Any] = [bytes(DIGEST_SIZE - 1), bytes(DIGEST_SIZE + 1), b"", "x" * DIGEST_SIZE, None]
WRONG: dict[str, list[Any]] = {
    "count": [-1, MAX_INT + 1, 2**64 - 1, 1.0, True, None, "1", b"1", [], {}],
    "ratio": [math.nan, math.inf, -math.inf, True, None, "0.5", [0.5]],
    "flag": [0, 1, None, "true"],
    "text": NO_TEXT,
    "blob": ["blob", 1, None, [1, 2]],
    "peer": NO_TEXT,
    "root": NO_DIGEST,
    "run": NO_DIGEST,
    "maybe": [-1, False, []],
    "parts": [None, "ab", {}, [None], [["bob"]], [["bob", 0.5, 1]], [["bob", math.nan]]],
    "pair": [["bob"], ["bob", ["a"], 1], ["bob", "a"], ["bob", [1]], [1, ["a"]]],
    "last": [[], ["bob", "0.5"], "bob", False],
    "codes": [3, [1], [4], [-1], [3.0], [False], [None], ["NO"]],
}


@pytest.mark.parametrize(("field", "item"), [(field, item) for field in WRONG for item in WRONG[field]])
def test_a_wrong_item_is_refused_and_its_field_named(field: str, item: object) -> None:
    items = msgpack.unpackb(encode(SAMPLE))
    items[1 + [each.name for each in dataclasses.fields(Sample)].index(field)] = item
    with pytest.raises(RemoteError) as caught:
        decode(msgpack.packb(items), BOB)
    assert caught.value.peer == BOB
    assert f"malformed Sample: {field}" in caught.value.reason


def test_a_whole_number_is_a_float_too() -> None:
    items = msgpack.unpackb(encode(SAMPLE))
    items[2] = 3
    decoded = decode(msgpack.packb(items))
    assert isinstance(decoded, Sample)
    assert (decoded.ratio, type(decoded.ratio)) == (3.0, float)


# -- what is not a message at all, and what is too much -----------------------------------------------------

NOT_MESSAGES = {
    "nothing": b"",
    "nil": b"\xc0",
    "a map": msgpack.packb({"tag": 1}),
    "an empty array": msgpack.packb([]),
    "an unknown tag": msgpack.packb([8_999]),
    "a negative tag": msgpack.packb([-1]),
    "a boolean tag": msgpack.packb([True]),
    "a tag that is an array": msgpack.packb([[1]]),
    "a missing field": msgpack.packb([9_000]),
    "a field too many": encode(SAMPLE)[:1] + b"\x00" + encode(SAMPLE)[1:],
    "a map inside": msgpack.packb([9_000, {"a": 1}]),
    "an extension": msgpack.packb([9_000, msgpack.ExtType(5, b"x")]),
    "a timestamp": msgpack.packb([9_000, msgpack.Timestamp(1)]),
    "text that is not UTF-8": b"\x92\xcd\x23\x28\xa2\xff\xfe",
    "a reserved byte": b"\xc1",
}


@pytest.mark.parametrize("data", NOT_MESSAGES.values(), ids=NOT_MESSAGES.keys())
def test_what_is_not_a_message_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteError) as caught:
        decode(data, BOB)
    assert caught.value.peer == BOB


FULL = b"\xdc\xff\xff"  # the head of a sequence of 65,535 items
BOMBS = {
    "deep": b"\x91" * 1_000_000,
    "deep and claiming much": FULL * 100_000,
    "claiming 4 billion items": b"\x92\x01\xdd\xff\xff\xff\xff",
    "claiming 4 GB of bytes": b"\x92\x01\xc6\xff\xff\xff\xff",
    "one item too many": b"\xdd" + (MAX_ITEMS + 1).to_bytes(4, "big") + b"\x01" * (MAX_ITEMS + 1),
    "an extension of a megabyte": b"\xc9\x00\x10\x00\x00\x05" + bytes(1 << 20),
    "a million empty sequences": b"\x9f" + (FULL + b"\x90" * 65_535) * 15,
    "a million short strings": b"\x9f" + (FULL + b"\xa2xy" * 65_535) * 15,
}


@pytest.mark.parametrize("data", BOMBS.values(), ids=BOMBS.keys())
def test_a_bomb_is_refused_before_it_grows(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(RemoteError, match="not well-formed"):  # not: built, and then found to be no message
            decode(data, BOB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100 << 20  # msgpack reserves at most 80 KB for each of 1,024 levels


def test_a_message_over_the_limit_is_refused_unread() -> None:
    data = encode(SAMPLE)
    assert decode(data, limit=len(data)) == SAMPLE
    with pytest.raises(RemoteError, match=f"over the limit of {len(data) - 1}"):
        decode(data, BOB, limit=len(data) - 1)


def test_a_view_decodes_like_bytes() -> None:
    assert decode(memoryview(encode(SAMPLE))) == SAMPLE


# -- the table itself ---------------------------------------------------------------------------------------


def test_a_tag_is_never_used_twice() -> None:
    with pytest.raises(TypeError, match="already Sample"):
        message(9_000)(type("Other", (Message,), {}))


def test_what_cannot_be_checked_cannot_travel() -> None:
    with pytest.raises(TypeError, match="cannot travel"):
        value(type("Loose", (), {"__annotations__": {"anything": dict}}))
