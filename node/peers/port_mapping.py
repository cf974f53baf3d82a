"""Our ports at the home router's outside, so that others can dial us: the shell of shoal.node.gateway.

Rules:
- It is a convenience: what goes wrong with it, ours included, is said once, is tried again, and never ends the node.
- A mapped address is one more that others may try (dialback.py). It makes nobody `public` before somebody has dialled
  us there, and is not named to others where the router is itself behind another one.
- The port of bulk sockets is mapped beside the first; whom we invite there is told which one it is outside. Without it
  payloads go as they do where somebody has forwarded one port only: it is we who dial.
- What is mapped is removed when the node ends. Where it is killed, the mapping ends with its lease.
- Who listens on the loopback or by IPv6 alone, and who is in no network of private addresses, asks nobody.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress

from shoal.dht.scope import Scope, scope_between
from shoal.node.gateway.finding import find
from shoal.node.gateway.judging import Judgement, judge
from shoal.node.gateway.routes import Home, home
from shoal.node.gateway.upkeep import LIFETIME, Find, Look, Map, Rest, Step, Upkeep
from shoal.node.gateway.values import Declined, Gateway, GatewayError
from shoal.node.logs import warn
from shoal.node.options import NodeSettings
from shoal.node.peers.discovery import Discovery
from shoal.node.peers.forwarding import port_in, ports_to_forward
from shoal.node.peers.relaying import Relaying
from shoal.node.service import Answer
from shoal.protocol.addresses import is_loopback
from shoal.protocol.multiaddrs import multiaddr
from shoal.protocol.network import Network

GLANCE = 5.0  # seconds between two looks at the network that we are in
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
    """`tell` hears when our addresses have changed."""

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
        self._home: Home | None = None
        self._gateway: Gateway | None = None
        self._upkeep = Upkeep((), random.Random())
        self._trouble: str | None = None  # why there is no mapping
        self._said: tuple[str | None, ...] = (None, None)

    def outside(self, port: int) -> tuple[str, int] | None:
        """Where a TCP port of ours is at the router's outside; None if it is nowhere."""
        host, lease = self._upkeep.host, self._upkeep.leases.get(port)
        return (host, lease.external) if host and lease else None

    def as_json(self) -> Answer | None:
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
        step: Step = Rest(GLANCE)
        try:
            self._glance()
            step = self._upkeep.next(_now()) if self._home is not None else step
            await self._take(step)
        except GatewayError as error:
            self._fail(step, error)
        except Exception as error:  # our own mistake, or this machine is out of something: no reason to end the node
            log.error("asking the router for a port has failed: %s", error)
            self._fail(step, GatewayError(str(error) or type(error).__name__))
            await asyncio.sleep(GLANCE)

    def _glance(self) -> None:
        if (found := home(self._settings.listen_host)) != self._home:
            self._home, self._gateway, self._trouble = found, None, None
            self._upkeep.moved(_now())
        self._may_ask = found is not None

    async def _take(self, step: Step) -> None:
        where, gateway, upkeep = self._home, self._gateway, self._upkeep
        match step:
            case Rest(seconds):
                await asyncio.sleep(min(seconds, GLANCE))
            case Find() if where is not None:
                self._gateway = await find(where)
                upkeep.found(_now())
            case Look() if gateway is not None:
                seen = await gateway.look(list(upkeep.leases.values()))
                upkeep.saw(_now(), seen)
            case Map(port, external) if gateway is not None:
                lease = await gateway.map(port, external, LIFETIME)
                upkeep.mapped(_now(), lease)
                self._trouble = None

    def _fail(self, step: Step, error: GatewayError) -> None:
        now, upkeep = _now(), self._upkeep
        if isinstance(step, Map) and isinstance(error, Declined):
            upkeep.declined(now, step.port, error.is_taken)
        elif isinstance(step, Map):
            upkeep.unheard(now, step.port)
        elif not isinstance(step, Rest):  # which has nothing to do with the router
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
        """Name the address to others if it may be one, and say what has changed."""
        judgement = self._judge()
        place, door = (None if judgement.is_behind else self.outside(port) for port in (self._port, self._port + 1))
        self._network.map_door(door[1] if door else None)
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
        """Each change once."""
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


def _now() -> float:
    return asyncio.get_running_loop().time()
