"""The framing of payloads, the same on every carrier, and the two flows that they belong to.

    length (4 bytes)   of all that follows
    head's size (2)    of the head
    flow (1)
    head               msgpack [run, the message without its payload]
    payload

So the payload is read where it is to stay, and is never copied to take its message apart. Decoding is total: any bytes
give a message or a RemoteError that names the sender.

What comes in SCATTER (contributions) is bounded: its sender has credit (flow_control.py), and a stream of it is not
read while too much waits here to be added. What comes in GATHER (means) is always taken: so an owner whose buffers are
full still gets the results of others, and nothing deadlocks. Of contributors, the first of a roster never waits for
another, the second for the first only, and so on: as all send the chunks of an owner in the same order, each is added
in the end.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import msgpack

from shoal.protocol.base.errors import LocalError, RemoteError
from shoal.protocol.base.ids import DIGEST_SIZE, PeerId, RunId
from shoal.protocol.base.wire import MAX_BULK_FRAME, Message, Payload, decode_bulk, encode_head
from shoal.protocol.messages.bulk import Flow
from shoal.protocol.messages.rounds import Contribution

PROTOCOLS = {Flow.SCATTER: "/shoal/scatter/1", Flow.GATHER: "/shoal/gather/1"}  # of streams
PREFIX = struct.Struct(">IHB")
MAX_HEAD = 1 << 14  # bytes: a mask has a bit for each member, and that is the most of it


def flow_of(message: Message) -> Flow:
    """The flow of a bulk message."""
    return Flow.SCATTER if isinstance(message, Contribution) else Flow.GATHER


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a prefix announces, in bytes."""

    head: int
    payload: int
    flow: Flow


def packed_head(run: RunId, message: Message) -> bytes:
    """The head of a bulk message."""
    head: bytes = msgpack.packb([run, encode_head(message)])
    if len(head) > MAX_HEAD:
        raise LocalError(f"a head of {len(head)} bytes is over the limit of {MAX_HEAD}")
    return head


def prefix(head: int, payload: int, flow: Flow) -> bytes:
    """What goes before a head and a payload of such sizes."""
    if payload > MAX_BULK_FRAME:
        raise LocalError(f"a payload of {payload} bytes is over the limit of {MAX_BULK_FRAME}")
    return PREFIX.pack(PREFIX.size - 4 + head + payload, head, flow)


def sizes(data: bytes | bytearray | memoryview, sender: PeerId) -> Sizes:
    """What follows a prefix; RemoteError beyond the limits."""
    length, head, flow = PREFIX.unpack(data[: PREFIX.size])
    payload = length - (PREFIX.size - 4) - head
    if head > MAX_HEAD or not 0 <= payload <= MAX_BULK_FRAME:
        raise RemoteError("announces a payload beyond the limits", sender)
    return Sizes(head, payload, flow_at(flow, sender))


def flow_at(code: int, sender: PeerId) -> Flow:
    """The flow of this code; RemoteError if there is none."""
    try:
        return Flow(code)
    except ValueError as error:
        raise RemoteError(f"announces a payload of flow {code}", sender) from error


def run_of(head: bytes | memoryview, sender: PeerId) -> tuple[RunId, bytes]:
    """The run that a head names, and the rest of it, not decoded yet."""
    try:
        run, rest = msgpack.unpackb(head, max_array_len=2, max_map_len=0, max_ext_len=0)
        if type(run) is not bytes or len(run) != DIGEST_SIZE or type(rest) is not bytes:
            raise ValueError("not a run and a message")
    except Exception as error:  # msgpack raises a dozen types; each means the same
        raise RemoteError("the head of a payload is malformed", sender) from error
    return RunId(run), rest


@dataclass(frozen=True, slots=True)
class Frame:
    """What follows a length, taken apart."""

    run: RunId
    head: bytes  # without the run
    payload: memoryview


def frame(data: bytes, sender: PeerId) -> Frame:
    """The frame in `data`, which begins after the length; RemoteError for anything else. A stream has one flow."""
    at_head = PREFIX.size - 4
    head = int.from_bytes(data[:2], "big")
    if head > min(MAX_HEAD, len(data) - at_head):
        raise RemoteError("sent a frame that is shorter than its head", sender)
    run, rest = run_of(data[at_head : at_head + head], sender)
    return Frame(run, rest, memoryview(data)[at_head + head :])


def unpacked(head: bytes, payload: Payload, flow: Flow, sender: PeerId) -> Message:
    """The message whose head, without the run, and payload these are, which came in this flow."""
    message = decode_bulk(head, payload, sender)
    if flow_of(message) is not flow:
        raise RemoteError(f"sent a {type(message).__name__} in the wrong flow", sender)
    return message
