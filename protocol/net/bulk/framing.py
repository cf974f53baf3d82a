"""The framing of payloads, the same on sockets and streams, and the two flows that they belong to.

    length (4 bytes)   of all that follows
    head's size (2)    of the head
    flow (1)
    head               msgpack [run, the message without its payload]
    payload

So a payload is read directly into its final memory, and never copied to decode its message. Decoding is total: any
bytes give a message or a RemoteError that names the sender.

The flow SCATTER (contributions) is bounded: senders need credit (flow_control.py), and a stream of it is not read while
too much waits here to be added. The flow GATHER (means) is always taken, so that an owner with full buffers still gets
the means of others, and nothing deadlocks. Among contributors, the first of a roster never waits for another, the
second only for the first, and so on: as all send the chunks of an owner in the same order, each is added in the end.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import msgpack

from shoal.protocol.base.errors import LocalError, RemoteError
from shoal.protocol.base.ids import DIGEST_SIZE, PeerId, RunId
from shoal.protocol.base.wire import MAX_BULK_FRAME, Message, Payload, decode_bulk, encode_head
from shoal.protocol.messages.averaging import Contribution
from shoal.protocol.messages.bulk import Flow
from shoal.protocol.messages.replicas import Chunk

PROTOCOLS = {Flow.SCATTER: "/shoal/scatter/1", Flow.GATHER: "/shoal/gather/1"}  # of streams
PREFIX = struct.Struct(">IHB")
MAX_HEAD = 1 << 14  # bytes; the largest part is a mask with a bit for each member


def flow_of(message: Message) -> Flow:
    """The flow of a bulk message."""
    return Flow.SCATTER if isinstance(message, Contribution | Chunk) else Flow.GATHER


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a prefix announces: sizes in bytes, and the flow."""

    head: int
    payload: int
    flow: Flow


def packed_head(run: RunId, message: Message) -> bytes:
    """The head of a bulk message; LocalError if it is too long."""
    head: bytes = msgpack.packb([run, encode_head(message)])
    if len(head) > MAX_HEAD:
        raise LocalError(f"a head of {len(head)} bytes is over the limit of {MAX_HEAD}", code="message-too-long")
    return head


def prefix(head: int, payload: int, flow: Flow) -> bytes:
    """The prefix of a head and a payload of these sizes; LocalError if the payload is too long."""
    if payload > MAX_BULK_FRAME:
        raise LocalError(f"a payload of {payload} bytes is over the limit of {MAX_BULK_FRAME}", code="message-too-long")
    return PREFIX.pack(PREFIX.size - 4 + head + payload, head, flow)


def sizes(data: bytes | bytearray | memoryview, sender: PeerId) -> Sizes:
    """Decodes a prefix; RemoteError for sizes beyond the limits or an unknown flow."""
    length, head, flow = PREFIX.unpack(data[: PREFIX.size])
    payload = length - (PREFIX.size - 4) - head
    if head > MAX_HEAD or not 0 <= payload <= MAX_BULK_FRAME:
        raise RemoteError("announces a payload beyond the limits", sender)
    return Sizes(head, payload, flow_at(flow, sender))


def flow_at(code: int, sender: PeerId) -> Flow:
    """The flow with this code; RemoteError if there is none."""
    try:
        return Flow(code)
    except ValueError as error:
        raise RemoteError(f"announces a payload of flow {code}", sender) from error


def run_of(head: bytes | memoryview, sender: PeerId) -> tuple[RunId, bytes]:
    """(run, encoded message without its payload) of a head; RemoteError if it is malformed."""
    try:
        run, rest = msgpack.unpackb(head, max_array_len=2, max_map_len=0, max_ext_len=0)
        if type(run) is not bytes or len(run) != DIGEST_SIZE or type(rest) is not bytes:
            raise ValueError("not a run and a message")
    except Exception as error:  # msgpack raises a dozen types; each means the same
        raise RemoteError("the head of a payload is malformed", sender) from error
    return RunId(run), rest


@dataclass(frozen=True, slots=True)
class Frame:
    """The parts of a frame."""

    run: RunId
    head: bytes  # without the run
    payload: memoryview


def frame(data: bytes, sender: PeerId) -> Frame:
    """Decodes a frame without its length; RemoteError if it is malformed. The flow is that of the stream."""
    at_head = PREFIX.size - 4
    head = int.from_bytes(data[:2], "big")
    if head > min(MAX_HEAD, len(data) - at_head):
        raise RemoteError("sent a frame that is shorter than its head", sender)
    run, rest = run_of(data[at_head : at_head + head], sender)
    return Frame(run, rest, memoryview(data)[at_head + head :])


def unpacked(head: bytes, payload: Payload, flow: Flow, sender: PeerId) -> Message:
    """The message of a head (without the run) and a payload; RemoteError if malformed or in the wrong flow."""
    message = decode_bulk(head, payload, sender)
    if flow_of(message) is not flow:
        raise RemoteError(f"sent a {type(message).__name__} in the wrong flow", sender)
    return message
