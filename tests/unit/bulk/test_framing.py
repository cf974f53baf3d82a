"""The framing of payloads: whatever comes is a frame or a RemoteError that names its sender."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.protocol.base.errors import LocalError, RemoteError
from shoal.protocol.base.ids import NO_DIGEST, PeerId, RunId
from shoal.protocol.base.wire import MAX_BULK_FRAME, encode
from shoal.protocol.messages.averaging import Contribution, Made, Mean
from shoal.protocol.messages.bulk import Flow
from shoal.protocol.net.bulk.framing import (
    MAX_HEAD,
    PREFIX,
    Sizes,
    frame,
    packed_head,
    prefix,
    run_of,
    sizes,
    unpacked,
)
from tests.unit.bulk.kit import PEER, RUN, load, parts

counts = st.integers(0, 2**63 - 1)
digests = st.binary(min_size=32, max_size=32)
contributions = st.builds(Contribution, counts, counts, counts, counts, counts, digests, st.binary(max_size=200))


@given(contributions, digests)
def test_what_was_framed_is_taken_apart_again(message: Contribution, run: bytes) -> None:
    before, head, payload = parts(message, RunId(run))
    assert sizes(before, PEER) == Sizes(len(head), len(payload), Flow.SCATTER)
    taken = frame((before + head + payload)[4:], PEER)  # a stream has read the length before
    assert taken.run == run
    assert unpacked(taken.head, taken.payload, Flow.SCATTER, PEER) == message
    assert unpacked(taken.head, taken.payload, Flow.SCATTER, PEER).payload is taken.payload  # type: ignore[attr-defined]


def blamed(judge: Callable[[], object]) -> PeerId | None:
    """Whom the RemoteError names; our peer if there is none. Any other error is one of ours."""
    try:
        judge()
    except RemoteError as error:
        return error.peer
    return PEER


def take_apart(data: bytes) -> None:
    """As what comes by a stream is."""
    taken = frame(data, PEER)
    assert len(taken.run) == 32
    unpacked(taken.head, taken.payload, Flow.SCATTER, PEER)


@given(st.binary(max_size=300))
@example(b"")
@example(b"\0")
@example(b"\0\0")
@example(b"\0\x22\0\x92\xc4\x20" + b"r" * 31)
def test_any_bytes_are_a_frame_or_the_senders_fault(data: bytes) -> None:
    assert blamed(lambda: take_apart(data)) == PEER


@given(contributions, st.data())
def test_altered_bytes_are_a_frame_or_the_senders_fault(message: Contribution, data: st.DataObject) -> None:
    whole = bytearray(b"".join(parts(message))[4:])
    for at in data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=4)):
        whole[at] = data.draw(st.integers(0, 255))
    assert blamed(lambda: take_apart(bytes(whole))) == PEER


@given(st.binary(min_size=PREFIX.size, max_size=PREFIX.size))
def test_any_prefix_announces_what_is_within_the_limits_or_is_refused(data: bytes) -> None:
    def judge() -> None:
        announced = sizes(data, PEER)
        assert prefix(announced.head, announced.payload, announced.flow) == data
        assert announced.head <= MAX_HEAD
        assert 0 <= announced.payload <= MAX_BULK_FRAME

    assert blamed(judge) == PEER


@pytest.mark.parametrize(
    ("head", "payload", "is_good"),
    [
        (0, 0, True),
        (MAX_HEAD, MAX_BULK_FRAME, True),
        (MAX_HEAD + 1, 0, False),
        (0, MAX_BULK_FRAME + 1, False),
        (9, -1, False),
    ],
)
def test_the_limits_are_exact(head: int, payload: int, is_good: bool) -> None:
    data = PREFIX.pack(PREFIX.size - 4 + head + payload, head, Flow.GATHER)
    if is_good:
        assert sizes(data, PEER) == Sizes(head, payload, Flow.GATHER)
    else:
        with pytest.raises(RemoteError, match="beyond the limits"):
            sizes(data, PEER)


def test_a_flow_that_there_is_not_and_a_message_in_the_wrong_one_are_refused() -> None:
    with pytest.raises(RemoteError, match="flow 2"):
        sizes(PREFIX.pack(PREFIX.size - 4, 0, 2), PEER)
    run, head = run_of(parts(load(1))[1], PEER)
    assert run == RUN
    with pytest.raises(RemoteError, match="wrong flow"):
        unpacked(head, b"", Flow.GATHER, PEER)


def test_a_frame_whose_head_names_no_run_is_refused() -> None:
    for head in (b"", b"\x92\xc4\x01r\xc4\x00", b"\x91\xc4\x00", encode(load(1)), b"\xc1"):
        with pytest.raises(RemoteError, match="malformed"):
            run_of(head, PEER)


def test_we_do_not_send_what_would_be_refused() -> None:
    with pytest.raises(LocalError, match="over the limit"):
        prefix(0, MAX_BULK_FRAME + 1, Flow.GATHER)
    with pytest.raises(LocalError, match="over the limit"):
        packed_head(RUN, Mean(0, 1, 1, Made(NO_DIGEST, bytes(MAX_HEAD), 0, PeerId("owner"), 1, b""), b""))
