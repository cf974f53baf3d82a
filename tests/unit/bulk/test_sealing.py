"""Sealing: what was sealed opens once, in its place, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.protocol.base.errors import TransportError
from shoal.protocol.net.bulk.framing import PREFIX
from shoal.protocol.net.bulk.sealing import KEY, TAG, Opener, Sealer, shared_key
from tests.unit.bulk import kit

SECRET = b"s" * KEY


def sealed(count: int, payload: bytes = b"payload" * 30) -> list[bytes]:
    """So many frames of one connection."""
    sealer = Sealer(SECRET)
    return [bytes(sealer.seal(*kit.parts(kit.load(number, payload)))) for number in range(count)]


def opened(opener: Opener, frame: bytes) -> tuple[bytes, bytes]:
    """The head and the payload of a frame, as a receiver opens them."""
    at_head = PREFIX.size
    head = PREFIX.unpack(frame[:at_head])[1]
    at_payload = at_head + head + TAG
    place = bytearray(max(0, len(frame) - at_payload - TAG))
    view = memoryview(frame)
    opened_head = opener.head(view[at_head:at_payload], view[:at_head])
    opener.payload(view[at_payload:], memoryview(place))
    return opened_head, bytes(place)


@given(st.lists(st.binary(max_size=2000), max_size=5))
def test_frames_open_in_their_order(payloads: list[bytes]) -> None:
    sealer, opener = Sealer(SECRET), Opener(SECRET)
    for number, payload in enumerate(payloads):
        parts = kit.parts(kit.load(number, payload))
        frame = bytes(sealer.seal(*parts))
        assert len(frame) == sum(map(len, parts)) + 2 * TAG
        assert opened(opener, frame) == parts[1:]


def test_a_payload_is_not_to_be_seen_in_what_is_sent() -> None:
    (frame,) = sealed(1, b"secret word" * 10)
    assert b"secret" not in frame
    first, second = sealed(2, b"same" * 10)
    assert first[PREFIX.size :] != second[PREFIX.size :]


@given(st.data())
def test_a_single_bit_that_was_altered_is_found(data: st.DataObject) -> None:
    (frame,) = sealed(1)
    at = data.draw(st.integers(0, 8 * len(frame) - 1))
    altered = bytearray(frame)
    altered[at // 8] ^= 1 << at % 8
    if PREFIX.unpack(altered[: PREFIX.size])[1] > len(frame) - PREFIX.size - 2 * TAG:
        return  # the receiver would wait for more
    with pytest.raises(TransportError, match="altered"):
        opened(Opener(SECRET), bytes(altered))


@pytest.mark.parametrize(
    "tamper",
    [
        lambda frames: frames[1:],
        lambda frames: [frames[0], frames[0]],
        lambda frames: [frames[1], frames[0]],
        lambda frames: [frames[0], frames[2]],
    ],
    ids=["first dropped", "doubled", "reordered", "one between dropped"],
)
def test_frames_that_are_not_the_next_do_not_open(tamper: Callable[[list[bytes]], list[bytes]]) -> None:
    opener, frames = Opener(SECRET), tamper(sealed(3))
    with pytest.raises(TransportError, match="altered"):
        _ = [opened(opener, frame) for frame in frames]


def test_a_frame_cut_short_does_not_open() -> None:
    (frame,) = sealed(1)
    with pytest.raises(TransportError, match="altered"):
        opened(Opener(SECRET), frame[:-1])


def test_another_connections_frame_does_not_open() -> None:
    (frame,) = sealed(1)
    with pytest.raises(TransportError, match="altered"):
        opened(Opener(b"x" * KEY), frame)


def test_the_key_depends_on_both_halves_and_on_who_gave_which() -> None:
    one, other = b"a" * 32, b"b" * 32
    keys = {shared_key(one, other), shared_key(other, one), shared_key(one, one), shared_key(other, other)}
    assert {len(key) for key in keys} == {KEY}
    assert len(keys) == 4
