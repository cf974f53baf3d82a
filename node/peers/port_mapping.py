"""Our ports at the home router's outside, so that others can dial us: the shell around shoal.node.peers.gateway.

Rules:
- It is a convenience: whatever goes wrong, mistakes of ours included, is said once, is tried again, and never ends the
  node.
- A mapped address is one more that others may try (dialback.py). It makes nobody `public` before somebody has dialled
  us there, and is not named to others where the router is itself behind another one.
- The port of bulk sockets is mapped beside the first, and peers that we invite there are told its number outside.
  Without it payloads go as they do where somebody has forwarded one port only: we dial.
- What is mapped is removed when the node ends. Where it is killed, the mapping ends with its lease.
- A node that listens on the loopback or by IPv6 alone, or is in no network of private addresses, asks nobody.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress

from shoal.dht.scope import Scope, scope_between
from shoal.node.api import answers
from shoal.node.base.logs import warn
from shoal.node.base.options import NodeSettings
from shoal.node.peers.discovery import Discovery
from shoal.node.peers.gateway.judging import Judgement, judge
from shoal.node.peers.gateway.natpmp import NatPmpGateway
from shoal.node.peers.gateway.router import (
    Declined,
    Gateway,
    GatewayError,
    HomeNetwork,
    home_network,
    port_in,
    ports_to_forward,
)
from shoal.node.peers.gateway.upkeep import LIFETIME, Action, FindRouter, Look, MapPort, Upkeep, Wait
from shoal.node.peers.gateway.upnp import find_upnp
from shoal.node.peers.relaying import Relaying
from shoal.protocol.base.multiaddrs import multiaddr
from shoal.protocol.net.peers.network import Network
from shoal.protocol.net.system.addresses import is_loopback

GLANCE = 5.0  # seconds between two looks at the network that we are in
FIND_LIMIT = 15.0  # seconds for finding a router
GOODBYE = 2.0  # seconds for removing what we mapped
BEYOND = (
    "put the inner router into bridge mode, or ask the provider for a public address; without either this node works "
    "like all others behind routers"
)

log = logging.getLogger("shoal.daemon")


def may_map(settings: NodeSettings) -> bool:
    """Whether a node with these settings asks its router for anything."""
    is_ours_alone = is_loopback(f"/ip/{settings.listen_host}/")
    return settings.port_mapping and not is_ours_alone and ":" not in settings.listen_host


class PortMapping:
    """`tell` is called when our addresses have changed."""

    def __init__(
        self,
        settings: NodeSettings,
        network: Network,
        discovery: Discovery,
        relaying: Relaying,
        tell: Callable[[], None],
    ) -> None:
        self._settings, self._network = settings, network
        self._discovery, self._relaying, self._tell = discovery, relaying, tell
        self._port = 0  # on which we listen, once we do
        self._may_ask = may_map(settings)  # as far as we know
        self._home: HomeNetwork | None = None
        self._gateway: Gateway | None = None
        self._upkeep = Upkeep((), random.Random())
        self._trouble: str | None = None  # why there is no mapping
        self._said: tuple[str | None, ...] = (None, None)

    def outside(self, port: int) -> tuple[str, int] | None:
        """Where a TCP port of ours is at the router's outside; None if it is nowhere."""
        host, lease = self._upkeep.host, self._upkeep.leases.get(port)
        return (host, lease.external) if host and lease else None

    def as_json(self) -> answers.PortMapping | None:
        """For `status`; None where nobody is asked, and `pending` until it is known what comes of it.

        Where another NAT lies behind the router, `error` says of what kind it is.
        """
        if not self._may_ask:
            return None
        judgement, external = self._judge(), self._external()
        error = judgement.words or self._trouble
        return {
            "protocol": self._gateway.protocol if self._gateway is not None else None,
            "external": external,
            "error": error,
            "behind_another_nat": judgement.is_behind,
            "pending": not (external or error),
        }

    async def run(self) -> None:
        """For good."""
        if not self._may_ask:
            return
        self._port = port_in(self._network.own_addresses())
        self._upkeep = Upkeep((self._port, self._port + 1), random.Random())
        try:
            while True:
                await self._step()
                self._settle()
        finally:
            await self._give_back()

    # -- with the router ------------------------------------------------------------------------------------

    async def _step(self) -> None:
        action: Action = Wait(GLANCE)
        try:
            self._glance()
            action = self._upkeep.next(_now()) if self._home is not None else action
            await self._take(action)
        except GatewayError as error:
            self._fail(action, error)
        except Exception as error:  # our own mistake, or this machine is out of something: no reason to end the node
            log.error("asking the router for a port has failed: %s", error)
            self._fail(action, GatewayError(str(error) or type(error).__name__))
            await asyncio.sleep(GLANCE)

    def _glance(self) -> None:
        if (found := home_network(self._settings.listen_host)) != self._home:
            self._home, self._gateway, self._trouble = found, None, None
            self._upkeep.moved(_now())
        self._may_ask = found is not None

    async def _take(self, action: Action) -> None:
        where, gateway, upkeep = self._home, self._gateway, self._upkeep
        match action:
            case Wait(seconds):
                await asyncio.sleep(min(seconds, GLANCE))
            case FindRouter() if where is not None:
                self._gateway = await find_router(where)
                upkeep.found(_now())
            case Look() if gateway is not None:
                seen = await gateway.look(list(upkeep.leases.values()))
                upkeep.saw(_now(), seen)
            case MapPort(port, external) if gateway is not None:
                lease = await gateway.map(port, external, LIFETIME)
                upkeep.mapped(_now(), lease)
                self._trouble = None

    def _fail(self, action: Action, error: GatewayError) -> None:
        now, upkeep = _now(), self._upkeep
        if isinstance(action, MapPort) and isinstance(error, Declined):
            upkeep.declined(now, action.port, error.is_taken)
        elif isinstance(action, MapPort):
            upkeep.unheard(now, action.port)
        elif not isinstance(action, Wait):  # which has nothing to do with the router
            upkeep.failed(now)
        if not self._upkeep.has_router:
            self._gateway = None
        if not self._upkeep.leases:
            self._trouble = str(error)

    async def _give_back(self) -> None:
        """Remove what is mapped, if the router is quick to hear."""
        if self._gateway is not None:
            with suppress(Exception):  # the node ends all the same
                async with asyncio.timeout(GOODBYE):
                    for lease in self._upkeep.leases.values():
                        await self._gateway.unmap(lease)

    # -- with all others ------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Name the mapped address to others, unless it is no use to them, and say what has changed."""
        judgement = self._judge()
        place, door = (None if judgement.is_behind else self.outside(port) for port in (self._port, self._port + 1))
        self._network.set_mapped_port(door[1] if door else None)
        addresses = (multiaddr(*place),) if place else ()
        if addresses != self._network.mapped_addresses:
            self._network.mapped_addresses = addresses
            self._discovery.moved()
            self._tell()
        self._say(judgement)

    def _judge(self) -> Judgement:
        is_online = any(scope_between(link.addresses) is Scope.INTERNET for link in self._network.links())
        is_confirmed = any(each in self._discovery.verdict.addresses for each in self._network.mapped_addresses)
        return judge(self._upkeep.host, self._relaying.seen_hosts, is_online, is_confirmed)

    def _say(self, judgement: Judgement) -> None:
        """Log each change once."""
        external, error = said = (self._external(), judgement.words or self._trouble)
        if said == self._said:
            return
        self._said = said
        if judgement.is_behind:
            warn(log, "behind-another-nat", f"a port mapping is of no use: {error}; {BEYOND}")
        elif error and self._gateway is not None:
            remedy = f"forward {ports_to_forward(self._port)} to this machine there by hand"
            words = f"the router does not let others in: {error}; it is asked again now and then, or {remedy}"
            warn(log, "port-mapping-refused", words)
        elif error:
            log.info("no router lets others in: %s", error, extra={"code": "port-mapping-none"})
        elif external:
            log.info("the router lets others in at %s", external, extra={"code": "port-mapped"})
        else:
            log.info("the router lets others in no more", extra={"code": "port-mapping-gone"})

    def _external(self) -> str | None:
        place = self.outside(self._port)
        return f"{place[0]}:{place[1]}" if place else None


# -- which router -----------------------------------------------------------------------------------------------


async def find_router(home: HomeNetwork) -> Gateway:
    """The router that leads out of our network; GatewayError, with what each said, if none can be asked.

    Both protocols are tried side by side. NAT-PMP is preferred where a router speaks both: it tells when the router has
    started again, and takes one packet for what takes UPnP four.
    """
    try:
        async with asyncio.timeout(FIND_LIMIT):
            return await _find_router(home)
    except TimeoutError as error:
        raise GatewayError(f"no router has said within {FIND_LIMIT:.0f} s what it can do") from error


async def _find_router(home: HomeNetwork) -> Gateway:
    searching = asyncio.create_task(find_upnp(home))
    try:
        pmp = NatPmpGateway(home.gateway) if home.gateway is not None else None
        refusal: GatewayError | None = None
        if pmp is not None:
            try:
                if (await pmp.look(())).host:
                    return pmp
            except GatewayError as error:
                refusal, pmp = error, None
        try:
            return await searching
        except GatewayError as error:
            if pmp is not None:
                return pmp  # it has no address outside; that is for its owner to know
            raise GatewayError("; ".join(str(each) for each in (refusal, error) if each is not None)) from error
    finally:
        searching.cancel()
        await asyncio.gather(searching, return_exceptions=True)  # raises what ends ourselves, and nothing else


def _now() -> float:
    return asyncio.get_running_loop().time()
