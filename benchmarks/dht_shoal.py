"""Nodes of Shoal's DHT for the benchmark: network and discovery as in the daemon, without a run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from kit.dht import LIFETIME, value_of
from kit.peer import Parent

from shoal.node.peers.discovery import Discovery
from shoal.protocol.base.ids import Digest, digest
from shoal.protocol.net.peers.network import Network
from shoal.protocol.net.peers.shared import Handlers
from shoal.protocol.net.system.identity import Identity

SETTLE = 60.0  # seconds for a node to learn that it can be dialled, and to know others

Timed = tuple[list[float], int]


class Node:
    """One node."""

    def __init__(self) -> None:
        identity = Identity.generate()
        self.network = Network(identity, host="127.0.0.1", port=0)
        self.discovery = Discovery(identity, self.network)

    async def join(self, first: str) -> None:
        """Listens, and connects to `first`, if it is given."""
        await self.network.start(Handlers(on_call=self.discovery.on_call, on_link=self.discovery.link))
        self.discovery.start()
        if first:
            await self.network.connect(first)
            await until(lambda: bool(self.discovery.contacts()))

    async def settled(self) -> None:
        """Waits until this node serves others."""
        await until(lambda: self.discovery.verdict.serves)

    async def close(self) -> None:
        """Leaves the DHT."""
        await self.discovery.close()
        await self.network.close()

    async def store(self, keys: Sequence[str]) -> Timed:
        """Stores these keys, one after the other; right if all nodes that should hold the record do."""

        async def one(key: str) -> bool:
            put = await self.discovery.put(_key(key), "", value_of(key), LIFETIME)
            return put.held == put.wanted

        return await timed(keys, one)

    async def get(self, keys: Sequence[str], wanted: bool) -> Timed:
        """Gets these keys, one after the other; right if there is a value just if `wanted`."""

        async def one(key: str) -> bool:
            values = [each.record.value for each in (await self.discovery.get(_key(key))).found]
            return values == ([value_of(key)] if wanted else [])

        return await timed(keys, one)


async def timed(keys: Sequence[str], one: Callable[[str], Awaitable[bool]]) -> Timed:
    """The seconds of each, and how many were right."""
    seconds, right = [], 0
    for key in keys:
        begin = time.perf_counter()
        right += await one(key)
        seconds.append(time.perf_counter() - begin)
    return seconds, right


async def do(node: Node, what: str, keys: Sequence[str]) -> Timed:
    """`store`, `get` or `miss`."""
    return await node.store(keys) if what == "store" else await node.get(keys, wanted=what == "get")


async def cold(what: str, keys: Sequence[str], first: str) -> Timed:
    """Each key by a new node, as soon as it knows a server."""
    seconds, right = [], 0
    for key in keys:
        node = Node()
        await node.join(first)
        took, well = await do(node, what, [key])
        seconds += took
        right += well
        await node.close()
    return seconds, right


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition; TimeoutError if it takes too long."""
    async with asyncio.timeout(SETTLE):
        while not condition():
            await asyncio.sleep(0.01)


async def main() -> None:
    """Be the nodes until nobody asks any more."""
    parent, nodes = Parent(), list[Node]()
    while (question := await asyncio.to_thread(parent.next)) is not None:
        if "nodes" in question:
            while len(nodes) < question["nodes"]:
                nodes.append(Node())
                await nodes[-1].join(question["first"])
            parent.say(addresses=[node.network.addresses()[0] for node in nodes])
        elif "settle" in question:
            await asyncio.gather(*(node.settled() for node in nodes))
            parent.say(servers=[len(node.discovery.contacts()) for node in nodes])
        else:
            seconds, right = await _answer(nodes, question)
            parent.say(seconds=seconds, right=right)
    await asyncio.gather(*(node.close() for node in nodes))


async def _answer(nodes: Sequence[Node], question: dict[str, Any]) -> Timed:
    [what] = set(question) & {"store", "get", "miss"}
    if "first" in question:
        return await cold(what, question[what], question["first"])
    return await do(nodes[question["node"]], what, question[what])


def _key(name: str) -> Digest:
    return digest("benchmark", name.encode())


if __name__ == "__main__":
    asyncio.run(main())
