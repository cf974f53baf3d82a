"""A bare transport in a process of its own, driven by lines of JSON: a relay, or one of two that meet by relays.

{"lend": [address]}                          be a relay
{"relays": [[peer, address], ...]}           dial these, reserve with each, learn where they see us; what follows of it
{"find": [peer, address]}                    whether the peer is there, dialled anew
{"reach": [peer, address, ...]}              dial a peer as nodes do, its addresses side by side, then say a word
{"words": [peer, count]}                     say so many, one after the other; the seconds until each comes back
{"path": peer}                               how we are connected with it
{"say": [peer, bytes]}                       have it say so much back to us
{"leave": peer}                              end all connections with it
{"cap": [up, down]}                          send and receive no faster, in bytes a second; before it does anything else
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from typing import Any

from shoal.protocol.base.errors import TransportError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.net.circuit.nat import NatMapping
from shoal.protocol.net.peers.dialing import first_answer, host_of
from shoal.protocol.net.system.addresses import is_loopback, own_hosts, reachable_at
from shoal.protocol.net.system.identity import Identity
from shoal.protocol.net.transport.transport import Connection, Stream, Transport

WORDS = "/test/words/1"
TRY = 2.0  # seconds for who may not be there
LIMIT = 10.0  # seconds for one address
TALK_PAUSE = 0.05  # seconds between two words


class Peer:
    """The other end of the pipe is the test."""

    def __init__(self) -> None:
        self.identity = Identity.generate()
        self.transport = Transport(self.identity, (WORDS,), self.accept, lambda peer, up: None)
        self.tasks: set[asyncio.Task[None]] = set()

    def accept(self, peer: PeerId, protocol: str, stream: Stream) -> None:
        self.tasks.add(asyncio.create_task(self.echo(stream)))

    async def echo(self, stream: Stream) -> None:
        reader = reading(stream)
        try:
            while True:
                await stream.write(await reader.read(1 << 16))
        except TransportError:
            stream.reset()

    async def meet(self, relays: list[list[str]]) -> dict[str, Any]:
        mapping = NatMapping()
        circuits: list[str] = []
        for peer, address in relays:
            await self.transport.dial(PeerId(peer), address, LIMIT)
            circuits += (await self.transport.reserve(PeerId(peer))).addresses
            seen, _ = await self.transport.seen_by(PeerId(peer))
            mapping.note(PeerId(peer), host_of(address), seen)
        own = reachable_at(self.transport.addresses(), own_hosts())
        self.transport.meet_at(mapping.places, mapping.kind(own) == "symmetric")
        return {
            "circuits": circuits,
            "own": [each for each in own if not is_loopback(each)],
            "mapping": mapping.kind(own),
            "seen": mapping.seen,
        }

    async def reach(self, peer: PeerId, addresses: list[str]) -> dict[str, Any]:
        begin = time.monotonic()

        async def dial(address: str) -> Connection:
            return await self.transport.dial(peer, address, LIMIT)

        await first_answer(lambda: addresses, dial)
        await self.say(peer, 1)
        return {"first_byte": time.monotonic() - begin}

    async def say(self, peer: PeerId, size: int) -> dict[str, Any]:
        stream = await self.transport.open_stream(peer, WORDS)
        reader = reading(stream)
        await stream.write(bytes(size))
        await reader.readexactly(size)
        stream.reset()
        return {}

    async def find(self, peer: PeerId, address: str) -> dict[str, Any]:
        try:
            return {"found": await self.transport.name_at(address, TRY) == peer}
        except TransportError:
            return {"found": False}

    async def talk(self, peer: PeerId, count: int) -> dict[str, Any]:
        stream = await self.transport.open_stream(peer, WORDS)
        reader, trips = reading(stream), list[float]()
        for _ in range(count):
            begin = time.monotonic()
            await stream.write(b"hello")
            await reader.readexactly(5)
            trips.append(time.monotonic() - begin)
            await asyncio.sleep(TALK_PAUSE)
        stream.reset()
        return {"trips": trips, "path": self.transport.path(peer)}

    async def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        if "relays" in question:
            return await self.meet(question["relays"])
        if "reach" in question:
            peer, *addresses = question["reach"]
            return await self.reach(PeerId(peer), addresses)
        if "find" in question:
            peer, address = question["find"]
            return await self.find(PeerId(peer), address)
        if "say" in question:
            peer, size = question["say"]
            return await self.say(PeerId(peer), size)
        if "words" in question:
            peer, count = question["words"]
            return await self.talk(PeerId(peer), count)
        if "lend" in question:
            self.transport.be_relay(tuple(question["lend"]))
            return {}
        if "cap" in question:
            up, down = question["cap"]
            self.transport.throttle.up.cap(up)
            self.transport.throttle.down.cap(down)
            return {}
        if "leave" in question:
            await self.transport.disconnect(PeerId(question["leave"]), "a test")
            return {}
        return {"path": self.transport.path(PeerId(question["path"]))}


def reading(stream: Stream) -> asyncio.StreamReader:
    """A reader of all that comes on a stream."""
    reader = asyncio.StreamReader()
    stream.listen(reader.feed_data, reader.set_exception)  # type: ignore[arg-type]
    stream.allow(1 << 40)
    return reader


async def main() -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(relativeCreated)d %(name)s %(message)s")
    logging.getLogger("shoal").setLevel(logging.DEBUG)
    peer = Peer()
    await peer.transport.start("/ip4/0.0.0.0/tcp/4101")
    print(json.dumps({"peer": peer.identity.peer}), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        try:
            answer = await peer.answer(json.loads(line))
        except TransportError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)
    await peer.transport.close()


if __name__ == "__main__":
    asyncio.run(main())
