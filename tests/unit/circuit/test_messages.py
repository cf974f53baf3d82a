"""The messages of circuits: valid ones are read, and any bytes are a message, a refusal, or the end."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, PeerId, StopMessage
from libp2p.stream_muxer.exceptions import MuxedStreamEOF

from shoal.protocol.net.circuit.accounts import Refused, Status
from shoal.protocol.net.circuit.messages import LONGEST, hop_answer, read_message, status_of, stop_answer, write_message


class Tape:
    """A stream that says back what it was told, `piece` bytes at a time."""

    def __init__(self, data: bytes = b"", piece: int = 1 << 20) -> None:
        self.data, self._piece = data, piece

    async def read(self, n: int | None = None) -> bytes:
        if not self.data:
            raise MuxedStreamEOF("the stream has ended")
        size = min(n or 1, self._piece)
        taken, self.data = self.data[:size], self.data[size:]
        return taken

    async def write(self, data: bytes) -> None:
        self.data += data


@pytest.mark.parametrize("piece", [1, 3, 1000])
@pytest.mark.parametrize("length", [0, 1, 127, 128, 3000])
def test_what_is_said_is_heard_and_nothing_after_it(length: int, piece: int) -> None:
    async def main() -> None:
        tape = Tape(piece=piece)
        message = HopMessage(type=HopMessage.CONNECT, peer=PeerId(id=bytes(length)))
        await write_message(tape, message)
        tape.data += b"and more"
        assert await read_message(tape, HopMessage) == message
        assert tape.data == b"and more"

    trio.run(main)


@given(st.binary(max_size=300))
def test_whatever_comes_is_a_message_or_a_refusal_or_the_end(data: bytes) -> None:
    for kind in (HopMessage, StopMessage):
        with suppress(Refused, MuxedStreamEOF):
            assert isinstance(trio.run(read_message, Tape(data), kind), kind)


@pytest.mark.parametrize("head", [b"\xff\xff\xff\xff\x7f", (LONGEST + 1).to_bytes(2, "little"), b"\x81\xa0\x00"])
def test_a_long_message_is_refused_before_it_is_read(head: bytes) -> None:
    tape = Tape(b"\xff" * 3 + head)
    with pytest.raises(Refused):
        trio.run(read_message, tape, HopMessage)


def test_an_answer_has_a_status() -> None:
    for status in Status:
        assert status_of(hop_answer(status)) is status
        assert status_of(stop_answer(status)) is status
    assert status_of(HopMessage(type=HopMessage.STATUS)) is Status.CONNECTION_FAILED, "one that we do not know"
    with pytest.raises(Refused):
        status_of(HopMessage(type=HopMessage.RESERVE))
