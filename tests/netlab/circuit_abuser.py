"""Who takes from a relay what it can, under several names at once, driven by lines of JSON.

{"reserve": [relay, address]}              dial a relay under each name, and reserve; all names
{"crowd": [relay, [target, ...], count]}   so many circuits, from all names by turns; how the relay answered each
{"flood": [target, circuit, bytes, seconds]}   send so many bytes, for so long at most; the bytes that left

Its argument says how circuits to it are answered: "never", with "nothing" after the relay's question, or as "usual".
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from contextlib import suppress
from itertools import cycle
from typing import Any

import trio
from libp2p.abc import INetStream
from libp2p.peer.id import ID
from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, StopMessage
from libp2p.relay.circuit_v2.pb.circuit_pb2 import PeerId as PeerInfo

from shoal.protocol.base.errors import TransportError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.net.circuit.accounts import Refused, Status
from shoal.protocol.net.circuit.client import Client
from shoal.protocol.net.circuit.messages import HOP, read_message, status_of, stop_answer, write_message
from shoal.protocol.net.system.identity import Identity
from shoal.protocol.net.transport.host import TrioHost
from shoal.protocol.net.transport.transport import Stream, Transport

WORDS = "/test/words/1"
NAMES = 8
AT_ONCE = 24  # circuits that are asked for at a time
LIMIT = 20.0
PIECE = 1 << 18


class Abuser:
    """All identities of one abuser."""

    def __init__(self) -> None:
        whoever = [Identity.generate() for _ in range(NAMES)]
        self.peers = [each.peer for each in whoever]
        self.names = [Transport(each, (WORDS,), self.swallow, lambda peer, up: None) for each in whoever]

    def swallow(self, peer: PeerId, protocol: str, stream: Stream) -> None:
        stream.listen(lambda data: None, lambda reason: None)
        stream.allow(1 << 60)

    async def start(self) -> None:
        for number, name in enumerate(self.names):
            await name.start(f"/ip4/0.0.0.0/tcp/{5_000 + number}")

    async def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        if "reserve" in question:
            return await self.reserve(*question["reserve"])
        if "crowd" in question:
            return await self.crowd(*question["crowd"])
        return await self.flood(*question["flood"])

    async def reserve(self, relay: str, address: str) -> dict[str, Any]:
        for name in self.names:
            await name.dial(PeerId(relay), address, LIMIT)
            await name.reserve(PeerId(relay))
        return {"names": self.peers}

    async def crowd(self, relay: str, targets: list[str], count: int) -> dict[str, Any]:
        gate, names, whom = asyncio.Semaphore(AT_ONCE), cycle(self.names), cycle(targets)

        async def one() -> str:
            async with gate:
                name, ends = next(names), (ID.from_string(relay), ID.from_string(next(whom)))
                with suppress(TransportError):
                    return await name._bridge.call(hold, name._host, *ends)
                return "cut off"

        return {"answers": Counter(await asyncio.gather(*(one() for _ in range(count))))}

    async def flood(self, target: str, circuit: str, size: int, seconds: float) -> dict[str, Any]:
        name, sent, begin = self.names[0], 0, time.monotonic()
        with suppress(TransportError, TimeoutError):
            async with asyncio.timeout(seconds):
                await name.dial(PeerId(target), circuit, LIMIT)
                stream = await name.open_stream(PeerId(target), WORDS)
                while sent < size:
                    await stream.write(bytes(PIECE))
                    sent += PIECE
        await name.disconnect(PeerId(target), "a test")
        return {"sent": sent, "seconds": time.monotonic() - begin}


async def hold(host: TrioHost, relay: ID, target: ID) -> str:
    """A circuit on which nothing is ever said; what the relay says to that."""
    stream = await host._negotiate(host._swarm.get_connections(relay)[0], HOP)
    with trio.move_on_after(LIMIT):
        try:
            await write_message(stream, HopMessage(type=HopMessage.CONNECT, peer=PeerInfo(id=target.to_bytes())))
            status = status_of(await read_message(stream, HopMessage))
        except Refused:
            status = Status.MALFORMED_MESSAGE
        if status is not Status.OK:
            await stream.reset()
        return status.name
    return "no answer"


async def nothing(self: Client, stream: INetStream) -> None:
    """Agree to a circuit, and leave it at that."""
    await read_message(stream, StopMessage)
    await write_message(stream, stop_answer(Status.OK))
    await trio.sleep_forever()


async def never(self: Client, stream: INetStream) -> None:
    """Do not even answer."""
    await trio.sleep_forever()


async def main() -> None:
    how = sys.argv[1]
    if how != "usual":
        Client.accept = {"nothing": nothing, "never": never}[how]  # type: ignore[method-assign]
    abuser = Abuser()
    await abuser.start()
    print(json.dumps({"peer": abuser.peers[0]}), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        try:
            answer = await abuser.answer(json.loads(line))
        except TransportError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
