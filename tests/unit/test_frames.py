"""Frames: all that we write is read back, and nothing that a stranger writes does harm."""

from __future__ import annotations

from contextlib import suppress

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.frames import LENGTH_SIZE, MAX_HEAD, Kind, decode_frame, frame_head, frame_length
from shoal.protocol.base.ids import PeerId, RunId
from shoal.protocol.base.wire import MAX_CONTROL_FRAME, MAX_INT

SENDER = PeerId("sender")
RUNS = st.none() | st.binary(min_size=32, max_size=32).map(RunId)


@given(st.sampled_from(Kind), st.integers(0, MAX_INT), RUNS, st.binary(max_size=300))
def test_a_frame_is_read_as_it_was_written(kind: Kind, call: int, run: RunId | None, body: bytes) -> None:
    written = frame_head(kind, call, run, len(body)) + body
    length = frame_length(written[:LENGTH_SIZE], MAX_CONTROL_FRAME, SENDER)
    assert length == len(written) - LENGTH_SIZE
    assert len(written) - len(body) <= MAX_HEAD
    frame = decode_frame(written[LENGTH_SIZE:], SENDER)
    assert (frame.kind, frame.call, frame.run, bytes(frame.body)) == (kind, call, run, body)


def test_a_frame_is_plain_msgpack() -> None:
    body = b"x" * 70_000
    written = frame_head(Kind.CALL, 7, None, len(body)) + body
    assert msgpack.unpackb(written[LENGTH_SIZE:]) == [1, 7, None, body]


@pytest.mark.parametrize("size", [0, 255, 256, 65_535, 65_536])
def test_any_length_form_of_the_body_is_read(size: int) -> None:
    data = msgpack.packb([int(Kind.ANSWER), 3, None, b"y" * size])
    assert len(decode_frame(data, SENDER).body) == size


def test_a_length_beyond_the_limit_is_refused_before_anything_is_read() -> None:
    assert frame_length((1000).to_bytes(4, "big"), 1000, SENDER) == 1000
    with pytest.raises(RemoteError, match="over the limit") as caught:
        frame_length((1001).to_bytes(4, "big"), 1000, SENDER)
    assert caught.value.peer == SENDER


@pytest.mark.parametrize(
    "data",
    [
        b"",
        msgpack.packb([0, 0, None]),
        msgpack.packb([0, 0, None, b"", 1]),
        msgpack.packb([99, 0, None, b""]),
        msgpack.packb([0, -1, None, b""]),
        msgpack.packb([0, 2**63, None, b""]),
        msgpack.packb([0, 0, b"short", b""]),
        msgpack.packb([0, 0, None, "text"]),
        msgpack.packb([0, 0, None, b"body"]) + b"more",
        msgpack.packb([0, 0, None, b"body"])[:-1],
        msgpack.packb({0: 0}),
        b"\x94" * 60,  # nested
    ],
)
def test_a_malformed_frame_names_its_sender(data: bytes) -> None:
    with pytest.raises(RemoteError, match="malformed") as caught:
        decode_frame(data, SENDER)
    assert caught.value.peer == SENDER


@given(st.binary(max_size=200))
def test_random_bytes_do_no_harm(data: bytes) -> None:
    try:
        frame = decode_frame(data, SENDER)
    except RemoteError:
        return
    assert isinstance(frame.kind, Kind)


@given(st.integers(0, 60), st.integers(0, 255))
def test_a_damaged_frame_does_no_harm(place: int, value: int) -> None:
    data = bytearray(frame_head(Kind.MESSAGE, 5, RunId(b"r" * 32), 20)[LENGTH_SIZE:] + b"b" * 20)
    data[place % len(data)] = value
    with suppress(RemoteError):
        decode_frame(bytes(data), SENDER)
