"""The daemon's side of `shoal doctor`: examinations for our user, answers for peers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from typing import TYPE_CHECKING

from shoal.node.doctor.answering import Answering, handled
from shoal.node.doctor.examination import Examination
from shoal.node.doctor.sources import Sources
from shoal.node.doctor.who import whom
from shoal.node.peers.discovery import Discovery
from shoal.node.peers.forwarding import port_in, ports_to_forward
from shoal.node.peers.reaching import Reaching
from shoal.node.peers.relaying import Relaying
from shoal.node.service import Answer
from shoal.protocol.errors import LocalError
from shoal.protocol.ids import PeerId
from shoal.protocol.messages.doctor import Carry, HowAmISeen
from shoal.protocol.network import Network
from shoal.protocol.wire import Message

if TYPE_CHECKING:
    from shoal.node.run.run import Run

AT_ONCE = 4  # examinations


class Desk:
    """Where both are asked for."""

    def __init__(
        self,
        network: Network,
        discovery: Discovery,
        relaying: Relaying,
        reaching: Reaching,
        runs: Callable[[], Mapping[str, Run]],
    ) -> None:
        self._network, self._discovery, self._relaying = network, discovery, relaying
        self._sources = Sources(network, discovery, reaching, runs)
        self._answering = Answering(network, self.standing)
        self._under_way = 0

    def handles(self, message: Message) -> bool:
        """Whether a call is for us."""
        return handled(message)

    def on_call(self, peer: PeerId, message: Message) -> Message:
        """Our answer to a call that `handles` says yes to."""
        assert isinstance(message, HowAmISeen | Carry)
        return self._answering.answer(peer, message)

    async def examine(self, asked: str) -> AsyncGenerator[Answer, None]:
        """See NodeService."""
        wanted = whom(asked, self._sources.peers())
        if wanted.peer == self._network.peer:
            raise LocalError("that is this node itself; `shoal status` says how it is")
        if self._under_way >= AT_ONCE:
            raise LocalError(f"{AT_ONCE} peers are being looked at already; wait until one is done")
        self._under_way += 1
        try:
            async for answer in Examination(self._network, self._sources, self.standing, wanted).run():
                yield answer
        finally:
            self._under_way -= 1

    def standing(self) -> Answer:
        """{reachability, nat, relays, addresses, ports}: what this node is behind."""
        return {
            "reachability": self._discovery.verdict.reachability,
            "nat": self._relaying.nat,
            "relays": self._relaying.relays,
            "addresses": list(self._network.addresses()),
            "ports": ports_to_forward(port_in(self._network.own_addresses())),
        }
