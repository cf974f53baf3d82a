"""`shoal netcheck` in the daemon: gathers the facts for node_checks.py when somebody asks.

Rules:
- Most facts are known at any time. Those that may have changed, or cost something to find out (whether others can dial
  us, clocks, large packets, IPv6), are determined again on the first question after FRESH seconds. An answer comes at
  once, with what is known so far; to get all of it, callers ask again until nothing is `pending`.
- Only known peers are dialled, TRIED at most, and on connections of their own: a trial may break its connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from shoal.dht.scope import Scope, scope_between, scope_of
from shoal.node.api.answers import NetcheckReport, Status
from shoal.node.api.status import join_command, label, lonely_runs, sought_runs
from shoal.node.base.quantities import limits_in_words
from shoal.node.daemon.diagnostics.node_checks import RELAYS, Facts, report
from shoal.node.peers.discovery import Discovery
from shoal.node.peers.relaying import Relaying
from shoal.protocol.base.errors import ShoalError, TransportError
from shoal.protocol.base.multiaddrs import host_and_port
from shoal.protocol.base.paths import DIRECT
from shoal.protocol.messages.dht import Contact
from shoal.protocol.net.measure.link import Link
from shoal.protocol.net.peers.network import Network
from shoal.protocol.net.system.addresses import is_loopback
from shoal.protocol.net.system.tasks import Tasks

FRESH = 30.0  # seconds for which facts are valid
TRIED = 3  # peers
CLOCKS_LIMIT = 2.0  # seconds in which peers that tell their clock at all have done so
RELAYS_LIMIT = 10.0  # seconds in which a relay should be found

log = logging.getLogger("shoal.daemon")


class NetCheck:
    """Answers `netcheck`; `status` gives the status of the API."""

    def __init__(
        self, network: Network, discovery: Discovery, relaying: Relaying, status: Callable[[], Status]
    ) -> None:
        self._network, self._discovery, self._relaying, self._status = network, discovery, relaying, status
        self._tasks = Tasks(lambda error: log.error("netcheck made a mistake", exc_info=error))
        self._looked_at: float | None = None
        self._large_packets: tuple[bool, ...] = ()
        self._ipv6_answers: bool | None = None
        self._busy: list[str] = []
        self._hidden_since: float | None = None  # nobody can dial us, and we have no relay

    async def close(self) -> None:
        """Cancel what is under way."""
        await self._tasks.close()

    def answer(self) -> NetcheckReport:
        """What is known by now; starts the trials if the facts are older than FRESH."""
        now = asyncio.get_running_loop().time()
        if self._network.links() and (self._looked_at is None or now - self._looked_at > FRESH) and not self._busy:
            self._looked_at = now
            self._discovery.look_again()
            self._busy = ["clocks", "large packets", "IPv6"]
            self._tasks.spawn(self._ask_clocks())
            self._tasks.spawn(self._try_packets())
            self._tasks.spawn(self._try_ipv6())
        return report(self._facts())

    # -- what is known --------------------------------------------------------------------------------------

    def _facts(self) -> Facts:
        links, own, verdict = self._network.links(), self._network.own_addresses(), self._discovery.verdict
        rtts = {link.peer: link.rtt_ms for link in links}
        throttle, status = self._network.throttle, self._status()
        facts = Facts(
            port=next((where[1] for each in own if (where := host_and_port(each)) is not None), 0),
            own=tuple(each for each in own if not is_loopback(each)),
            found_at=verdict.addresses,
            seen_places=self._relaying.seen_places,
            came=sum(bool(link.came_to) and scope_between(link.addresses) is Scope.INTERNET for link in links),
            peers=len(links),
            internet_peers=sum(scope_between(link.addresses) is Scope.INTERNET for link in links),
            reachability=verdict.reachability,
            mapping=self._relaying.nat,
            relays=tuple((relay, rtts.get(relay)) for relay in self._relaying.relays),
            lends=self._relaying.lends,
            clocks=tuple(link.ahead for link in links if link.ahead is not None),
            ipv6_answers=self._ipv6_answers,
            large_packets=self._large_packets,
            portmap=status["port_mapping"],
            limits=limits_in_words({"max_up": throttle.up.rate, "max_down": throttle.down.rate}),
            is_in_runs=bool(status["runs"]),
            lonely=tuple((label(run), join_command(run)) for run in lonely_runs(status)),
            sought=tuple(sought_runs(status)),
        )
        return replace(facts, pending=tuple(self._pending(facts)))

    def _pending(self, facts: Facts) -> Iterator[str]:
        if not facts.peers:
            yield "other peers"
            return
        if (facts.reachability == "unknown" and not facts.is_local) or not self._discovery.is_settled:
            yield "whether others can dial this node"
        if self._seeks_relays(facts):
            yield RELAYS
        if facts.reachability == "nat" and facts.mapping == "unknown":
            yield "what the router makes of its port"
        if facts.portmap is not None and facts.portmap["pending"]:
            yield "a port of the router"
        yield from self._busy

    def _seeks_relays(self, facts: Facts) -> bool:
        """Whether a relay may still be found; after RELAYS_LIMIT seconds we no longer expect one."""
        now = asyncio.get_running_loop().time()
        if facts.reachability != "nat" or facts.relays:
            self._hidden_since = None
            return False
        self._hidden_since = now if self._hidden_since is None else self._hidden_since
        return now - self._hidden_since < RELAYS_LIMIT

    # -- what is tried --------------------------------------------------------------------------------------

    async def _ask_clocks(self) -> None:
        """Ask again: earlier answers may be old, and our clock may have been set since."""
        try:
            self._network.measure()
            await asyncio.sleep(CLOCKS_LIMIT)
        finally:
            self._busy.remove("clocks")

    async def _try_packets(self) -> None:
        try:
            tried = await asyncio.gather(*(self._passes(link) for link in self._nearby()))
            self._large_packets = tuple(each for each in tried if each is not None)
        finally:
            self._busy.remove("large packets")

    def _nearby(self) -> list[Link]:
        """The TRIED peers to try with: relays first, because they can be dialled, then those on the internet."""
        relays = self._relaying.relays
        direct = [link for link in self._network.links() if link.path == DIRECT]
        return sorted(direct, key=lambda link: (link.peer not in relays, -scope_between(link.addresses)))[:TRIED]

    async def _passes(self, link: Link) -> bool | None:
        try:
            return await self._network.large_packets_pass(link.peer)
        except TransportError as error:  # it was not we who had dialled, or it is gone
            log.debug("large packets to %s cannot be tried: %s", link.peer, error)
            return None

    async def _try_ipv6(self) -> None:
        try:
            used = [each for link in self._network.links() for each in _of_ipv6(link.addresses)]
            known = [contact for contact in self._discovery.contacts() if _of_ipv6(contact.addresses)][:TRIED]
            tried = [True] if used else await asyncio.gather(*(self._answers_by_ipv6(each) for each in known))
            said = [each for each in tried if each is not None]
            self._ipv6_answers = any(said) if said else None
        finally:
            self._busy.remove("IPv6")

    async def _answers_by_ipv6(self, contact: Contact) -> bool | None:
        """Whether a peer answers by IPv6; None if it does not answer by IPv4 either, so that nothing follows."""
        if await self._answers(_of_ipv6(contact.addresses)):
            return True
        fours = [each for each in contact.addresses if each.startswith("/ip4/") and scope_of(each) is Scope.INTERNET]
        is_there = bool(self._network.remote_addresses(contact.peer)) or (fours and await self._answers(fours))
        return False if is_there else None

    async def _answers(self, addresses: Sequence[str]) -> bool:
        """Whether anybody answers at any of these addresses."""
        try:
            await self._network.name_at(*addresses)
        except ShoalError:
            return False
        return True


def _of_ipv6(addresses: Iterable[str]) -> list[str]:
    return [each for each in addresses if each.startswith("/ip6/") and scope_of(each) is Scope.INTERNET]
