"""Finds out whether others can dial us, and dials others who want to know: the shell of shoal.dht.reachability."""

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

DIAL_LIMIT = 4.0  # seconds for dialling others
CALL_LIMIT = 6.0  # seconds for the answer to our request
DOUBT = 0.7  # seconds after which a dial of us has probably failed: those that succeed are faster
LOOK = 5.0  # seconds between two checks whether to ask a peer
FIRST_LIMIT = 5.0  # seconds until we count as not reachable, if the first peers that we ask do not answer
MAX_NAMED = 8  # addresses in our request


class DialBack:
    """Asks other peers to dial us, and dials those that ask us. `on_verdict` is called with each new verdict."""

    def __init__(self, network: Network, on_verdict: Callable[[Verdict], None]) -> None:
        self.verdict = Verdict()
        self.is_doubtful = False  # a peer has been dialling us for longer than DOUBT
        self._network = network
        self._on_verdict = on_verdict
        self._reachability = Reachability()
        self._tries = DialBackLimits()
        self._changed = asyncio.Event()
        self._was_tried = asyncio.Event()

    def look_again(self) -> None:
        """Have others dial us again, even if the verdict is settled."""
        self._reachability.renew()
        self._changed.set()

    @property
    def is_settled(self) -> bool:
        """Whether no peer is about to report something new."""
        return self._reachability.is_settled and not self._changed.is_set()

    def link(self) -> None:
        """A peer is connected now, which we may ask, or our addresses have changed."""
        self._changed.set()

    async def first_verdict(self) -> None:
        """Waits, at most FIRST_LIMIT, until a peer has tried to dial us."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LIMIT):
                await self._was_tried.wait()
        self._was_tried.set()

    async def run(self) -> None:
        """Runs until it is cancelled: asks connected peers while the verdict is not settled."""
        while True:
            self._changed.clear()
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
                    await self._changed.wait()

    async def try_for(self, asker: PeerId, message: TryMe) -> Message:
        """Dials a peer that asks for it; the answer says at which of its addresses it was reached."""
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
            self._on_verdict(self.verdict)

    def _named(self) -> tuple[str, ...]:
        """Our addresses that others should try."""
        return shortlist((*self._network.mapped_addresses, *self._network.own_addresses()), MAX_NAMED)

    def _look_at_verdict(self) -> None:
        if (verdict := self._reachability.verdict()) != self.verdict:
            self.verdict, self.is_doubtful = verdict, False
            self._on_verdict(verdict)


def _now() -> float:
    return asyncio.get_running_loop().time()
