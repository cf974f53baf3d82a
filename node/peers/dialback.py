"""Finds out whether others can dial us, and tries that for them: the shell of shoal.dht.reachability."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from shoal.dht.reachability import DialBackLimits, Reachability, Realm, Verdict, realm_between, to_dial
from shoal.protocol.base.errors import RemoteError, TransportError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.multiaddrs import shortlist
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.dht import Reached, TryMe
from shoal.protocol.messages.node import Refused
from shoal.protocol.net.peers.network import Network

DIAL_LIMIT = 4.0  # seconds for what we dial for others
CALL_LIMIT = 6.0  # seconds for the answer to our question
DOUBT = 0.7  # seconds for which somebody tries to dial us, as nobody needs whose packets get through
LOOK = 5.0  # seconds between two looks whether somebody is to be asked
FIRST_LIMIT = 5.0  # seconds until we count as not reachable, if the first whom we ask do not say
MAX_NAMED = 8  # addresses in our question


class DialBack:
    """Asks and answers. `tell` hears of each new verdict."""

    def __init__(self, network: Network, tell: Callable[[Verdict], None]) -> None:
        self.verdict = Verdict()
        self.is_doubtful = False  # somebody has tried for so long that it may be in vain
        self._network = network
        self._tell = tell
        self._reachability = Reachability()
        self._tries = DialBackLimits()
        self._somebody_came = asyncio.Event()
        self._was_tried = asyncio.Event()

    def look_again(self) -> None:
        """Somebody wants to know how it is now."""
        self._reachability.renew()
        self._somebody_came.set()

    @property
    def is_settled(self) -> bool:
        """Whether nobody is about to say something new."""
        return self._reachability.is_settled and not self._somebody_came.is_set()

    def link(self) -> None:
        """Somebody is connected now, whom we may ask, or we are elsewhere."""
        self._somebody_came.set()

    async def first_verdict(self) -> None:
        """Wait, not for long, until somebody has tried to dial us."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LIMIT):
                await self._was_tried.wait()
        self._was_tried.set()

    async def run(self) -> None:
        """For good: ask whoever is connected, while we want to know more."""
        while True:
            self._somebody_came.clear()
            self._reachability.set_addresses(self._named())
            direct = [link for link in self._network.links() if link.path == "direct"]
            linked = [(link.peer, realm_between(link.addresses)) for link in direct]
            for link in direct:
                self._reachability.dialled_us(link.peer, link.came_to)
            chosen = self._reachability.whom_to_ask(_now(), linked)
            realms = dict(linked)
            await asyncio.gather(*(self._ask(peer, realms[peer]) for peer in chosen))
            self._look_at_verdict()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK):
                    await self._somebody_came.wait()

    async def try_for(self, asker: PeerId, message: TryMe) -> Message:
        """Our answer to one that wants to be dialled."""
        if not self._tries.allows(_now(), asker):
            return Refused("asked too often to be dialled")
        addresses = to_dial(message.addresses, self._network.remote_addresses(asker))
        found = await asyncio.gather(*(self._is_at(asker, address) for address in addresses))
        return Reached(tuple(address for address, is_there in zip(addresses, found, strict=True) if is_there))

    async def _is_at(self, peer: PeerId, address: str) -> bool:
        try:
            async with asyncio.timeout(DIAL_LIMIT):
                return await self._network.name_at(address) == peer
        except (TransportError, TimeoutError):
            return False

    async def _ask(self, peer: PeerId, realm: Realm) -> None:
        answer: Message | None = None
        doubt = asyncio.get_running_loop().call_later(DOUBT, self._doubt)
        try:
            answer = await self._network.call(peer, TryMe(self._named()), CALL_LIMIT)
        except (TransportError, RemoteError):
            pass
        finally:
            doubt.cancel()
        came_to = self._network.came_to(peer)
        if isinstance(answer, Reached) or came_to:
            tried = answer.addresses if isinstance(answer, Reached) else ()
            self._reachability.answered(_now(), peer, realm, (*came_to, *tried))
            self._was_tried.set()
        else:
            self._reachability.failed(_now(), peer, realm)
        self._look_at_verdict()

    def _doubt(self) -> None:
        if not self.is_doubtful:
            self.is_doubtful = True
            self._tell(self.verdict)

    def _named(self) -> tuple[str, ...]:
        """Where we may be."""
        return shortlist((*self._network.mapped_addresses, *self._network.own_addresses()), MAX_NAMED)

    def _look_at_verdict(self) -> None:
        if (verdict := self._reachability.verdict()) != self.verdict:
            self.verdict, self.is_doubtful = verdict, False
            self._tell(verdict)


def _now() -> float:
    return asyncio.get_running_loop().time()
