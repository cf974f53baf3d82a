"""Frames on streams: a length of 4 bytes, then msgpack [kind, call, run or nil, body].

Rules:
- The length is checked before anything is allocated; beyond the limit the stream is unusable, because what
  follows cannot be skipped cheaply.
- `body` comes last, so that head and payload are written without joining them, and read without a copy.
- Decoding is total: any bytes give a Frame or a RemoteError that names the sender.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import msgpack

from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import DIGEST_SIZE, PeerId, RunId
from shoal.protocol.base.wire import MAX_INT

LENGTH_SIZE = 4
MAX_HEAD = 64  # array header 1, kind 1, call 9, run 34, body header 5: 50 at most
BODY_SIZES = {0xC4: 1, 0xC5: 2, 0xC6: 4}  # msgpack bin 8, 16, 32: the bytes that hold the length


class Kind(IntEnum):
    """The kind of a frame's body. MESSAGE is one way; the others carry the number of their call or ping."""

    MESSAGE = 0
    CALL = 1
    ANSWER = 2
    FAILURE = 3  # the body is the reason, in UTF-8
    BUSY = 4  # too many calls at once; nothing was done
    PING = 5
    PONG = 6


@dataclass(frozen=True, slots=True)
class Frame:
    """One received frame; the body is not yet decoded."""

    kind: Kind
    call: int
    run: RunId | None
    body: memoryview


def frame_head(kind: Kind, call: int, run: RunId | None, body_size: int) -> bytes:
    """The bytes of a frame before its body, length included."""
    packer = msgpack.Packer(autoreset=False)
    packer.pack_array_header(4)
    packer.pack(int(kind))
    packer.pack(call)
    packer.pack(run)
    head: bytes = packer.bytes() + b"\xc6" + body_size.to_bytes(4, "big")
    return (len(head) + body_size).to_bytes(LENGTH_SIZE, "big") + head


def frame_length(prefix: bytes, limit: int, sender: PeerId) -> int:
    """How many bytes follow the length prefix; raises RemoteError beyond `limit`."""
    length = int.from_bytes(prefix, "big")
    if length > limit:
        raise RemoteError(f"frame is over the limit of {limit} bytes", sender)
    return length


def decode_frame(data: bytes, sender: PeerId) -> Frame:
    """The frame in `data`, which has no length prefix; raises RemoteError for anything else."""
    try:
        unpacker = msgpack.Unpacker()
        unpacker.feed(data[:MAX_HEAD])
        if unpacker.read_array_header() != 4:
            raise ValueError("not four fields")
        kind, call, run = Kind(unpacker.unpack()), unpacker.unpack(), unpacker.unpack()
        start = unpacker.tell() + 1
        size = BODY_SIZES[data[start - 1]]
        body = memoryview(data)[start + size :]
        if len(body) != int.from_bytes(data[start : start + size], "big"):
            raise ValueError("the body's length does not match")
        if type(call) is not int or not 0 <= call <= MAX_INT:
            raise ValueError("not a call number")
        if run is not None and (type(run) is not bytes or len(run) != DIGEST_SIZE):
            raise ValueError("not a run")
    except Exception as error:  # msgpack raises a dozen types, which all mean the same
        raise RemoteError("frame is malformed", sender) from error
    return Frame(kind, call, None if run is None else RunId(run), body)
