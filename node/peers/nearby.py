"""Nodes on the local network find each other by mDNS: each announces itself, and hears the others.

Rules:
- It is a convenience: a failure is one warning, is tried again, and never ends the node.
- It is spoken on all interfaces that lead to others by multicast: networks, then tunnels, then containers. If they are
  more than HEARD_ON, the log says which ones are left out. Where the system does not list them (sandboxes refuse that),
  it is spoken on the way out: others hear us and greet us, but we believe nobody to be near.
- Announcements are hearsay, and checked. At most ASKED names are asked about at once.
- When our addresses change (a laptop wakes up elsewhere), we withdraw the announcement and make a new one.
- zeroconf is loaded with the first announcement: a node that listens on the loopback alone never needs it.

An announcement is a service of our own type, so that other programs' libp2p does not dial us, with a text record per
node (RFC 6763):

    v=1                                   the version of this format
    peer=12D3Koo...                       the PeerID, which is the service's name as well
    a0=/ip4/10.0.0.7/tcp/4101  a1=...     where it listens, at most MAX_ADDRESSES

Only addresses in a network to which we are attached are dialled (an announcement cannot make us dial the internet), and
a peer must prove its name.
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

# -- what is said on the local network -----------------------------------------------------------------------------


SERVICE = "_shoal._tcp.local."
VERSION = b"1"
MAX_ADDRESSES = 16
MAX_ADDRESS = 100  # characters

Words = Mapping[bytes, bytes | None]


def words(peer: PeerId, addresses: Sequence[str]) -> dict[str, str]:
    """The text record of a node that listens at these multiaddrs."""
    plain = [place_of(address) for address in addresses]
    named = shortlist(plain, MAX_ADDRESSES)
    return {"v": VERSION.decode(), "peer": peer, **{f"a{i}": each for i, each in enumerate(named)}}


def believed(said: Words, attached: Sequence[InterfaceAddress]) -> tuple[PeerId, tuple[str, ...]] | None:
    """Who says to be where, as far as it may be so; None if nothing of it may."""
    if said.get(b"v") != VERSION:
        return None
    try:
        peer = PeerId((said.get(b"peer") or b"").decode())
        public_key(peer)
        claimed = [(said.get(b"a%d" % i) or b"").decode() for i in range(MAX_ADDRESSES)]
    except ValueError:
        return None
    near = tuple(dict.fromkeys(each for each in claimed if _is_door(each, attached)))
    return (peer, near) if near else None


def _is_door(address: str, attached: Sequence[InterfaceAddress]) -> bool:
    """Whether a multiaddr is a TCP port, and no more, on a network to which we are attached."""
    return len(address) <= MAX_ADDRESS and address.count("/") == 4 and is_near(address, attached)


LOOK = 5.0  # seconds between two looks at our addresses
RETRY = 60.0  # seconds after a failure
ASKED = 8  # names that are asked about at once
ASK_LIMIT = 3.0  # seconds
CLOSE_LIMIT = 3.0  # seconds for the goodbye
HEARD_ON = 16  # addresses of ours on which we speak and listen: systems allow about 20 multicast memberships

log = logging.getLogger("shoal.daemon")


def may_be_near(settings: NodeSettings) -> bool:
    """Whether a node with these settings shows itself on the local network."""
    return settings.mdns and not is_loopback(f"/ip/{settings.listen_host}/")


class Nearby:
    """Our voice and our ear on the local network. `on_gone` is hearsay like `on_found`."""

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
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._has_warned = False
        self._is_unlisted = False  # the system does not list our interfaces
        self._unheard: list[str] = []

    async def run(self) -> None:
        """For good."""
        while True:
            pause = LOOK
            if hosts := self._own_hosts():
                try:
                    await self._be_there(hosts)
                except Exception as error:  # zeroconf raises what it likes; the node goes on without it
                    self._complain(error)
                    pause = RETRY
            await asyncio.sleep(pause)

    async def _be_there(self, hosts: list[str]) -> None:
        """Speak and listen on the interfaces with these addresses for as long as they are ours."""
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
            raise LocalError("another node there has a copy of this node's key") from error

    async def _sign_off(self, zeroconf: AsyncZeroconf) -> None:
        for task in list(self._asking.values()):
            task.cancel()
        with suppress(Exception):  # the network may be gone; others notice in time
            async with asyncio.timeout(CLOSE_LIMIT):
                await zeroconf.async_close()

    def _own_hosts(self) -> list[str]:
        """Where we speak and listen."""
        known = interfaces()
        if not known and (way := way_out()):
            if not self._is_unlisted:
                log.info(
                    "this system does not list its networks: by mDNS this node is heard at %s, and hears nobody", way
                )
            self._is_unlisted = True
            return [way]
        hosts, unheard = heard_on(known)
        if unheard and unheard != self._unheard:
            log.info("mDNS is not spoken on %s: this machine has too many networks", ", ".join(unheard))
        self._unheard = unheard
        return hosts

    def _shown(self, hosts: list[str]) -> tuple[str, ...]:
        """Where we listen on these networks."""
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
            properties=words(self._peer, addresses),
        )

    # -- what is heard --------------------------------------------------------------------------------------

    def _on_change(self, zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange) -> None:
        """Of all that is said, zeroconf keeps a bounded part."""
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
        elif len(self._asking) < ASKED and name not in self._asking:
            self._asking[name] = asyncio.create_task(self._ask(zeroconf, info, name))

    async def _ask(self, zeroconf: Zeroconf, info: AsyncServiceInfo, name: str) -> None:
        """Whoever announces itself in several words says the rest when it is asked."""
        try:
            if await info.async_request(zeroconf, ASK_LIMIT * 1000):
                self._hear(info)
        except Exception as error:  # see `run`
            self._complain(error)
        finally:
            self._asking.pop(name, None)

    def _hear(self, info: AsyncServiceInfo) -> None:
        found = believed(info.properties, interface_addresses())
        if found is not None and found[0] != self._peer:
            self._on_found(*found)

    def _complain(self, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            warn(
                log,
                "mdns-unavailable",
                f"nodes on the local network cannot be found by mDNS ({str(error) or type(error).__name__}); all else "
                "works, and it is tried again. --no-mdns does without it",
            )


def heard_on(attached: Sequence[NetworkInterface]) -> tuple[list[str], list[str]]:
    """Of each interface by which others may hear us, its address of either family; and those that are too many."""
    open_ones = [each for each in attached if each.multicast and each.kind is not InterfaceKind.NOWHERE]
    hosts = ranked([replace(each, addresses=_one_of_each_family(each)) for each in open_ones])
    return hosts[:HEARD_ON], hosts[HEARD_ON:]


def _one_of_each_family(interface: NetworkInterface) -> tuple[InterfaceAddress, ...]:
    return tuple({address.version: address for address in reversed(interface.addresses)}.values())
