"""Messages of circuit relay v2 and DCUtR on a stream: protobuf with a length prefix. Belongs to the trio thread."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Protocol, TypeVar, cast

import trio
from google.protobuf.message import DecodeError, Message
from libp2p.abc import INetStream
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, Limit, Reservation, StopMessage

from shoal.protocol.net.circuit.accounts import Refused, Status

HOP = "/libp2p/circuit/relay/0.2.0/hop"
STOP = "/libp2p/circuit/relay/0.2.0/stop"
LONGEST = 4096  # bytes of a message

M = TypeVar("M", bound=Message)


class ByteStream(Protocol):
    """The part of a stream that is needed here."""

    async def read(self, n: int | None = None) -> bytes:
        """Read between 1 and `n` bytes."""

    async def write(self, data: bytes) -> None:
        """Write all of `data`."""


async def read_message(stream: ByteStream, kind: type[M]) -> M:
    """Read the next message and nothing beyond it; Refused if it is malformed or too long."""
    size, shift = 0, 0
    while True:
        [byte] = await stream.read(1)
        size |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            break
        if shift > 14:
            raise Refused(Status.MALFORMED_MESSAGE)
    if size > LONGEST:
        raise Refused(Status.MALFORMED_MESSAGE)
    data = b""
    while len(data) < size:
        data += await stream.read(size - len(data))
    message = kind()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise Refused(Status.MALFORMED_MESSAGE) from error
    return message


async def write_message(stream: ByteStream, message: Message) -> None:
    """Write a message."""
    data = message.SerializeToString()
    size, head = len(data), bytearray()
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    await stream.write(bytes([*head, size]) + data)


def hop_answer(status: Status, limit: Limit | None = None, reservation: Reservation | None = None) -> HopMessage:
    """A relay's answer."""
    return HopMessage(type=HopMessage.STATUS, status=cast(Any, int(status)), limit=limit, reservation=reservation)


def stop_answer(status: Status) -> StopMessage:
    """The answer of the target of a circuit."""
    return StopMessage(type=StopMessage.STATUS, status=cast(Any, int(status)))


def status_of(message: HopMessage | StopMessage) -> Status:
    """The status in an answer; Refused if the message is none."""
    if message.type != type(message).STATUS:
        raise Refused(Status.UNEXPECTED_MESSAGE)
    try:
        return Status(message.status)
    except ValueError:
        return Status.CONNECTION_FAILED


async def drop(stream: INetStream) -> None:
    """Reset a stream, in whatever state it is, and even if we are cancelled."""
    with suppress(Exception), trio.CancelScope(shield=True):  # it has ended already
        await stream.reset()
