"""Nodes on the local network find each other by mDNS: each announces itself, and hears the others.

Rules:
- It is a convenience: a failure gives one warning, is tried again, and never ends the node.
- It runs on all interfaces with multicast: networks, then tunnels, then containers. If there are more than MAX_HOSTS,
  the log says which ones are left out. If the system does not list its interfaces (sandboxes refuse that), only that of
  the default route is used: others hear and dial us, but we believe no announcement.
- Announcements are hearsay, and checked. At most MAX_QUERIES names are queried at once.
- When our addresses change (a laptop wakes up elsewhere), we withdraw the announcement and make a new one.
- zeroconf is loaded with the first announcement: a node that listens on the loopback only never needs it.

An announcement is a service of our own type, so that other programs' libp2p does not dial us, with a text record per
node (RFC 6763):

    v=1                                   the version of this format
    peer=12D3Koo...                       the PeerID, which is the service's name as well
    a0=/ip4/10.0.0.7/tcp/4101  a1=...     its addresses, at most MAX_ADDRESSES

Only addresses in a network to which we are attached are dialled (an announcement cannot make us dial the internet), and
a peer must prove its PeerID.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from shoal.dht.scope import is_near
from shoal.node.base.logs import warn
from shoal.node.base.options import NodeSettings
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.multiaddrs import place_of, shortlist
from shoal.protocol.net.system.addresses import interface_addresses, is_loopback, way_out
from shoal.protocol.net.system.identity import public_key
from shoal.protocol.net.system.interfaces import InterfaceAddress, InterfaceKind, NetworkInterface, interfaces, ranked

if TYPE_CHECKING:
    from zeroconf import ServiceStateChange, Zeroconf
    from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

# -- the format of announcements -----------------------------------------------------------------------------------


SERVICE = "_shoal._tcp.local."
VERSION = b"1"
MAX_ADDRESSES = 16
MAX_ADDRESS = 100  # characters

TextRecord = Mapping[bytes, bytes | None]


def text_record(peer: PeerId, addresses: Sequence[str]) -> dict[str, str]:
    """The text record of a node that listens at these multiaddrs."""
    plain = [place_of(address) for address in addresses]
    named = shortlist(plain, MAX_ADDRESSES)
    return {"v": VERSION.decode(), "peer": peer, **{f"a{i}": each for i, each in enumerate(named)}}


def parse_announcement(
    record: TextRecord, attached: Sequence[InterfaceAddress]
) -> tuple[PeerId, tuple[str, ...]] | None:
    """The announced peer, and those of its addresses that are plausible; None if there are none."""
    if record.get(b"v") != VERSION:
        return None
    try:
        peer = PeerId((record.get(b"peer") or b"").decode())
        public_key(peer)
        claimed = [(record.get(b"a%d" % i) or b"").decode() for i in range(MAX_ADDRESSES)]
    except ValueError:
        return None
    near = tuple(dict.fromkeys(each for each in claimed if _is_plausible(each, attached)))
    return (peer, near) if near else None


def _is_plausible(address: str, attached: Sequence[InterfaceAddress]) -> bool:
    """Whether a multiaddr is a plain TCP port on a network to which we are attached."""
    return len(address) <= MAX_ADDRESS and address.count("/") == 4 and is_near(address, attached)


LOOK = 5.0  # seconds between two checks of our addresses
RETRY = 60.0  # seconds after a failure
MAX_QUERIES = 8  # names that are queried at once
QUERY_LIMIT = 3.0  # seconds
CLOSE_LIMIT = 3.0  # seconds for withdrawing the announcement
MAX_HOSTS = 16  # addresses of ours on which mDNS runs: systems allow about 20 multicast memberships

log = logging.getLogger("shoal.daemon")


def may_be_near(settings: NodeSettings) -> bool:
    """Whether a node with these settings announces itself on the local network."""
    return settings.mdns and not is_loopback(f"/ip/{settings.listen_host}/")


class Nearby:
    """Announces us on the local network, and hears others. `on_gone` is hearsay like `on_found`."""

    def __init__(
        self,
        peer: PeerId,
        addresses: Callable[[], tuple[str, ...]],
        on_found: Callable[[PeerId, tuple[str, ...]], None],
        on_gone: Callable[[PeerId], None],
    ) -> None:
        self._peer = peer
        self._addresses = addresses
        self._on_found, self._on_gone = on_found, on_gone
        self._queries: dict[str, asyncio.Task[None]] = {}  # by name
        self._has_warned = False
        self._is_unlisted = False  # the system does not list our interfaces
        self._unheard: list[str] = []

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            pause = LOOK
            if hosts := self._own_hosts():
                try:
                    await self._announce_and_listen(hosts)
                except Exception as error:  # zeroconf raises errors of any kind; the node goes on without it
                    self._warn_once(error)
                    pause = RETRY
            await asyncio.sleep(pause)

    async def _announce_and_listen(self, hosts: list[str]) -> None:
        """Runs mDNS on the interfaces with these addresses, until our addresses change."""
        from zeroconf import InterfaceChoice
        from zeroconf.asyncio import AsyncServiceBrowser, AsyncZeroconf

        zeroconf = AsyncZeroconf(
            interfaces=hosts if interfaces() else InterfaceChoice.Default
        )  # it looks hosts up there
        try:
            addresses = self._shown(hosts)
            if addresses:
                await self._announce(zeroconf, addresses)
            browser = AsyncServiceBrowser(zeroconf.zeroconf, SERVICE, handlers=[self._on_change])
            while self._own_hosts() == hosts and self._shown(hosts) == addresses:
                await asyncio.sleep(LOOK)
            await browser.async_cancel()
        finally:
            await self._sign_off(zeroconf)

    async def _announce(self, zeroconf: AsyncZeroconf, addresses: tuple[str, ...]) -> None:
        from zeroconf import NonUniqueNameException

        try:
            await zeroconf.async_register_service(self._info(addresses))
        except NonUniqueNameException as error:
            raise LocalError("another node there has a copy of this node's key", code="same-key") from error

    async def _sign_off(self, zeroconf: AsyncZeroconf) -> None:
        for task in list(self._queries.values()):
            task.cancel()
        with suppress(Exception):  # the network may be gone; the announcement then expires
            async with asyncio.timeout(CLOSE_LIMIT):
                await zeroconf.async_close()

    def _own_hosts(self) -> list[str]:
        """Our addresses on which mDNS runs."""
        known = interfaces()
        if not known and (way := way_out()):
            if not self._is_unlisted:
                log.info(
                    "this system does not list its networks: by mDNS this node is heard at %s, and hears nobody", way
                )
            self._is_unlisted = True
            return [way]
        hosts, unheard = multicast_hosts(known)
        if unheard and unheard != self._unheard:
            log.info("mDNS is not spoken on %s: this machine has too many networks", ", ".join(unheard))
        self._unheard = unheard
        return hosts

    def _shown(self, hosts: list[str]) -> tuple[str, ...]:
        """Our listen addresses on these networks."""
        own = [f"/{host}/" for host in hosts]
        return tuple(address for address in self._addresses() if any(host in address for host in own))

    def _info(self, addresses: tuple[str, ...]) -> AsyncServiceInfo:
        from zeroconf.asyncio import AsyncServiceInfo

        parts = [address.split("/") for address in addresses]
        return AsyncServiceInfo(
            SERVICE,
            f"{self._peer}.{SERVICE}",
            port=int(parts[0][4]),
            server=f"{self._peer}.local.",
            parsed_addresses=[each[2] for each in parts],
            properties=text_record(self._peer, addresses),
        )

    # -- announcements of others ----------------------------------------------------------------------------

    def _on_change(self, zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
        """zeroconf's callback for each announcement; its cache is bounded."""
        from zeroconf import ServiceStateChange
        from zeroconf.asyncio import AsyncServiceInfo

        if name.startswith(f"{self._peer}."):
            return
        if state_change is ServiceStateChange.Removed:
            self._on_gone(PeerId(name.partition(".")[0]))
            return
        info = AsyncServiceInfo(service_type, name)
        if info.load_from_cache(zeroconf):
            self._hear(info)
        elif len(self._queries) < MAX_QUERIES and name not in self._queries:
            self._queries[name] = asyncio.create_task(self._query(zeroconf, info, name))

    async def _query(self, zeroconf: Zeroconf, info: AsyncServiceInfo, name: str) -> None:
        """Asks for the records of an announcement that came in several packets."""
        try:
            if await info.async_request(zeroconf, QUERY_LIMIT * 1000):
                self._hear(info)
        except Exception as error:  # see `run`
            self._warn_once(error)
        finally:
            self._queries.pop(name, None)

    def _hear(self, info: AsyncServiceInfo) -> None:
        found = parse_announcement(info.properties, interface_addresses())
        if found is not None and found[0] != self._peer:
            self._on_found(*found)

    def _warn_once(self, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            warn(
                log,
                "mdns-unavailable",
                f"nodes on the local network cannot be found by mDNS ({str(error) or type(error).__name__}); all else "
                "works, and it is tried again. --no-mdns does without it",
            )


def multicast_hosts(attached: Sequence[NetworkInterface]) -> tuple[list[str], list[str]]:
    """One address of each family for each interface with multicast: the first MAX_HOSTS, and the rest."""
    open_ones = [each for each in attached if each.multicast and each.kind is not InterfaceKind.NOWHERE]
    hosts = ranked([replace(each, addresses=_one_of_each_family(each)) for each in open_ones])
    return hosts[:MAX_HOSTS], hosts[MAX_HOSTS:]


def _one_of_each_family(interface: NetworkInterface) -> tuple[InterfaceAddress, ...]:
    return tuple({address.version: address for address in reversed(interface.addresses)}.values())
