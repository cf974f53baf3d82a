"""Parts of the world: one life of a peer, the way of a message through the codec, the trace of all inputs."""

from __future__ import annotations

import hashlib
import struct
from typing import Any, Generic, TypeVar

from shoal.protocol.base.effects import Effect
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import Message, decode, encode
from tests.simulation.node import Node
from tests.simulation.uplink import Uplink

N = TypeVar("N", bound=Node)


class Process(Generic[N]):
    """One life of a peer."""

    __slots__ = (
        "alive",
        "backlog",
        "fuse",
        "held",
        "held_since",
        "links",
        "node",
        "origin",
        "paused",
        "peer",
        "uplink",
    )

    def __init__(self, peer: PeerId, node: N, origin: float, uplink: Uplink | None) -> None:
        self.peer = peer
        self.node = node
        self.origin = origin  # what its clock shows at the world's time 0
        self.uplink = uplink
        self.alive = True
        self.paused = False
        self.backlog: list[tuple[Any, ...]] = []
        self.links: dict[PeerId, Process[N]] = {}
        self.held: list[Effect] | None = None  # while its disk is full: what waits for a record
        self.held_since = 0  # the event from which on it does
        self.fuse: int | None = None  # effects that it may still carry out before it dies


class Trace:
    """A running hash over (time, peer, input)."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)

    def record(self, time: float, peer: PeerId, item: tuple[Any, ...]) -> None:
        """Take one input into account."""
        if item[0] == "message":
            shown = f"{peer}<{item[1].peer}".encode() + item[3]
        elif item[0] == "timer":
            timer = item[1]
            shown = f"{peer}!{timer.core} {timer.name} {timer.token} {timer.subject}".encode()
        else:
            shown = f"{peer}?{item[0]}".encode()
        self._hash.update(struct.pack("<d", time) + shown)

    def digest(self) -> str:
        """The hash so far."""
        return self._hash.hexdigest()


def through_codec(message: Message) -> tuple[bytes, Message]:
    """The bytes of `message` and what the receiver makes of them."""
    data = encode(message)
    copy = decode(data)
    assert copy == message, f"{message!r} became {copy!r} in the codec"
    return data, copy
