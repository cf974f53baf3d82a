"""Maps our ports at the home router, so that others can dial us: the shell around shoal.node.peers.gateway.

Rules:
- It is a convenience: every failure, bugs included, is logged once and tried again, and never ends the node.
- A mapped address is one more that others may try (dialback.py). We do not count as `public` before somebody has
  dialled us there, and the address is not told to others if the router is itself behind another NAT.
- The port of bulk sockets is mapped, too, and peers that we invite to it are told its external number. Without that
  mapping it is we who dial for payloads, as with one forwarded port.
- Mappings are removed when the node ends. If it is killed, they end with their leases.
- A node that listens on the loopback or by IPv6 only, or is in no network of private addresses, asks no router.
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
from shoal.node.peers.gateway.double_nat import DoubleNat, detect_double_nat
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

CHECK_EVERY = 5.0  # seconds between two checks of the network that we are in
FIND_LIMIT = 15.0  # seconds for finding a router
GOODBYE = 2.0  # seconds for removing our mappings
DOUBLE_NAT_REMEDY = (
    "put the inner router into bridge mode, or ask the provider for a public address; without either this node works "
    "like all others behind routers"
)

log = logging.getLogger("shoal.daemon")


def may_map(settings: NodeSettings) -> bool:
    """Whether a node with these settings asks its router for anything."""
    is_ours_alone = is_loopback(f"/ip/{settings.listen_host}/")
    return settings.port_mapping and not is_ours_alone and ":" not in settings.listen_host


class PortMapping:
    """Keeps our ports mapped; `on_moved` is called when our addresses have changed."""

    def __init__(
        self,
        settings: NodeSettings,
        network: Network,
        discovery: Discovery,
        relaying: Relaying,
        on_moved: Callable[[], None],
    ) -> None:
        self._settings, self._network = settings, network
        self._discovery, self._relaying, self._on_moved = discovery, relaying, on_moved
        self._port = 0  # on which we listen, once we do
        self._may_ask = may_map(settings)  # until the network has been checked
        self._home: HomeNetwork | None = None
        self._gateway: Gateway | None = None
        self._upkeep = Upkeep((), random.Random())
        self._trouble: str | None = None  # why there is no mapping
        self._logged: tuple[str | None, ...] = (None, None)

    def external_place(self, port: int) -> tuple[str, int] | None:
        """The router's external address and port that lead to a TCP port of ours; None if it is not mapped."""
        host, lease = self._upkeep.host, self._upkeep.leases.get(port)
        return (host, lease.external) if host and lease else None

    def as_json(self) -> answers.PortMapping | None:
        """For `status`; None if no router is asked. It is `pending` until there is a mapping or an error.

        If there is another NAT behind the router, `error` says of what kind it is.
        """
        if not self._may_ask:
            return None
        double_nat, external = self._double_nat(), self._external()
        error = double_nat.reason or self._trouble
        return {
            "protocol": self._gateway.protocol if self._gateway is not None else None,
            "external": external,
            "error": error,
            "behind_another_nat": double_nat.is_behind,
            "pending": not (external or error),
        }

    async def run(self) -> None:
        """Runs until it is cancelled."""
        if not self._may_ask:
            return
        self._port = port_in(self._network.own_addresses())
        self._upkeep = Upkeep((self._port, self._port + 1), random.Random())
        try:
            while True:
                await self._step()
                self._settle()
        finally:
            await self._remove_mappings()

    # -- with the router ------------------------------------------------------------------------------------

    async def _step(self) -> None:
        action: Action = Wait(CHECK_EVERY)
        try:
            self._check_network()
            action = self._upkeep.next(_now()) if self._home is not None else action
            await self._take(action)
        except GatewayError as error:
            self._fail(action, error)
        except Exception as error:  # a bug, or this machine lacks something: no reason to end the node
            log.error("asking the router for a port has failed: %s", error, extra={"code": "port-mapping-failed"})
            self._fail(action, GatewayError(str(error) or type(error).__name__))
            await asyncio.sleep(CHECK_EVERY)

    def _check_network(self) -> None:
        if (found := home_network(self._settings.listen_host)) != self._home:
            self._home, self._gateway, self._trouble = found, None, None
            self._upkeep.moved(_now())
        self._may_ask = found is not None

    async def _take(self, action: Action) -> None:
        where, gateway, upkeep = self._home, self._gateway, self._upkeep
        match action:
            case Wait(seconds):
                await asyncio.sleep(min(seconds, CHECK_EVERY))
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
            upkeep.unanswered(now, action.port)
        elif not isinstance(action, Wait):  # a wait has nothing to do with the router
            upkeep.failed(now)
        if not self._upkeep.has_router:
            self._gateway = None
        if not self._upkeep.leases:
            self._trouble = str(error)

    async def _remove_mappings(self) -> None:
        """Removes our mappings, if the router answers quickly."""
        if self._gateway is not None:
            with suppress(Exception):  # the node ends all the same
                async with asyncio.timeout(GOODBYE):
                    for lease in self._upkeep.leases.values():
                        await self._gateway.unmap(lease)

    # -- with other peers -----------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Tells others the mapped address, unless it is of no use to them, and logs changes."""
        double_nat = self._double_nat()
        place, bulk_place = (
            None if double_nat.is_behind else self.external_place(port) for port in (self._port, self._port + 1)
        )
        self._network.set_mapped_port(bulk_place[1] if bulk_place else None)
        addresses = (multiaddr(*place),) if place else ()
        if addresses != self._network.mapped_addresses:
            self._network.mapped_addresses = addresses
            self._discovery.moved()
            self._on_moved()
        self._log_changes(double_nat)

    def _double_nat(self) -> DoubleNat:
        is_online = any(scope_between(link.addresses) is Scope.INTERNET for link in self._network.links())
        is_confirmed = any(each in self._discovery.verdict.addresses for each in self._network.mapped_addresses)
        return detect_double_nat(self._upkeep.host, self._relaying.seen_hosts, is_online, is_confirmed)

    def _log_changes(self, double_nat: DoubleNat) -> None:
        """Logs each change once."""
        external, error = state = (self._external(), double_nat.reason or self._trouble)
        if state == self._logged:
            return
        self._logged = state
        if double_nat.is_behind:
            warn(log, "behind-another-nat", f"a port mapping is of no use: {error}; {DOUBLE_NAT_REMEDY}")
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
        place = self.external_place(self._port)
        return f"{place[0]}:{place[1]}" if place else None


# -- which router -----------------------------------------------------------------------------------------------


async def find_router(home: HomeNetwork) -> Gateway:
    """The router of our network; GatewayError, with the reasons of both protocols, if none can be asked.

    Both protocols are tried at once. NAT-PMP is preferred if a router speaks both: it tells when the router has
    restarted, and needs one packet where UPnP needs four.
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
                return pmp  # it has no external address, which its owner should see in `status`
            raise GatewayError("; ".join(str(each) for each in (refusal, error) if each is not None)) from error
    finally:
        searching.cancel()
        await asyncio.gather(searching, return_exceptions=True)  # raises only if we are cancelled ourselves


def _now() -> float:
    return asyncio.get_running_loop().time()
