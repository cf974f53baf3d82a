"""The part of a node that finds ways to others, without runs: light enough for a hundred of them in a test.

What membership does in a run is done by hand: where one can be reached is told to those who want to know, at once, and
whoever wants another tries until they are connected.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from shoal.node.peers.discovery import Discovery
from shoal.node.peers.peer_finder import PeerFinder
from shoal.node.peers.relaying import Relaying
from shoal.node.peers.remembered import PeerCache
from shoal.protocol.base.errors import TransportError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.paths import RELAYED
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.node import Refused
from shoal.protocol.net.peers.network import Network
from shoal.protocol.net.peers.shared import Handlers
from shoal.protocol.net.system.identity import Identity
from tests.netlab.segments import Host

PAUSE = 0.05  # seconds between two tries to reach somebody
LOOK = 0.005  # seconds between two looks at a path
PATIENCE = 60.0  # seconds for anything at all

T = TypeVar("T")


@dataclass(frozen=True)
class Way:
    """Seconds until there was a path to another, and until there was one without a relay; None if that never came."""

    first: float | None
    best: float | None
    path: str


class Pathfinder:
    """The pathfinding part of one node, in threads of the test's process."""

    def __init__(self, host: Host, port: int, folder: Path) -> None:
        self.host, self.port = host, port
        self.identity = Identity.generate()
        self.friends: list[Pathfinder] = []  # who are told where we are
        self._cache = PeerCache(folder / f"{self.identity.peer}.peers")
        self._tasks: set[asyncio.Task[None]] = set()
        self._started, self._ended = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=lambda: host.on(lambda: asyncio.run(self._live())), daemon=True)

    @property
    def peer(self) -> PeerId:
        return self.identity.peer

    def start(self, *link: str) -> Pathfinder:
        """Begin, and knock at these addresses."""
        self._link = link
        self._thread.start()
        assert self._started.wait(PATIENCE)
        return self

    def close(self) -> None:
        """End, in good order; who was never started has nothing to end."""
        if not self._started.is_set():
            return
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(PATIENCE)

    def do(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work` in this pathfinder's event loop; its result."""

        async def there() -> T:
            return await work()

        return asyncio.run_coroutine_threadsafe(there(), self._loop).result(PATIENCE)

    def want(self, other: Pathfinder) -> None:
        """Get connected with another, by whatever way there will be."""
        other.friends.append(self)
        self._loop.call_soon_threadsafe(self._start_wanting, other.peer)
        other._loop.call_soon_threadsafe(other._tell)

    def way_to(self, other: Pathfinder, begin: float, limit: float) -> Way:
        """When we had which path, counted from `begin` (monotonic); for `limit` seconds at most."""

        async def watch() -> Way:
            first: float | None = None
            while (now := time.monotonic() - begin) < limit:
                path = next((each.path for each in self.network.links() if each.peer == other.peer), None)
                first = now if first is None and path is not None else first
                if path is not None and path != RELAYED:
                    return Way(first, now, path)
                await asyncio.sleep(LOOK)
            return Way(first, None, RELAYED if first is not None else "none")

        return self.do(watch)

    def is_connected_with(self, other: Pathfinder) -> bool:
        """Whether it is there, by any path."""
        return bool(self.network.remote_addresses(other.peer))

    @property
    def reachability(self) -> str:
        """Whether others can dial us, as far as we know."""
        return self.network.reachability

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.network = Network(self.identity, port=self.port)
        self.discovery = Discovery(self.identity, self.network, lambda peer: True)
        self.relaying = Relaying(self.network, self.discovery, self._tell)
        self.peer_finder = PeerFinder(self.network, (), self._cache, lambda: not self.network.links())
        on_stranger = self.peer_finder.greet_stranger
        await self.network.start(Handlers(on_call=self._on_call, on_link=self._on_link, on_stranger=on_stranger))
        self.discovery.start(self.relaying.hear_news)
        self.peer_finder.add_linked(self._link)
        duties = [asyncio.create_task(duty()) for duty in (self.peer_finder.run, self.relaying.run)]
        self._started.set()
        try:
            await self._ended.wait()
        finally:
            for task in (*duties, *self._tasks):
                task.cancel()
            await asyncio.gather(*duties, *self._tasks, return_exceptions=True)
            await self.discovery.close()
            await self.network.close()

    def _on_call(self, peer: PeerId, message: Message) -> Message | Awaitable[Message]:
        serve = self.discovery.calls().get(type(message))
        return serve(peer, message) if serve is not None else Refused("this node finds paths, and does nothing else")

    def _on_link(self, peer: PeerId, up: bool) -> None:
        self.discovery.link(peer, up)
        self.relaying.link(peer, up)

    def _tell(self) -> None:
        addresses = self.network.addresses()
        for friend in self.friends:
            friend._loop.call_soon_threadsafe(friend.network.remember, self.peer, addresses)

    def _start_wanting(self, peer: PeerId) -> None:
        self._tasks.add(asyncio.create_task(self._reach(peer)))

    async def _reach(self, peer: PeerId) -> None:
        while not self.network.remote_addresses(peer):
            with suppress(TransportError):
                await self.network.meet(peer, PATIENCE)
                return
            await asyncio.sleep(PAUSE)


@contextmanager
def pathfinders(folder: Path, port: int, *hosts: Host) -> Iterator[Sequence[Pathfinder]]:
    """One pathfinder on each machine, not started yet; all are stopped at the end."""
    with ExitStack() as stack:
        made = [Pathfinder(host, port, folder) for host in hosts]
        for each in made:
            stack.callback(each.close)
        yield made
