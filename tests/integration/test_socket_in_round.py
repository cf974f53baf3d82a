"""Bulk sockets that are shut down in the middle of an all-reduce: the round is decided all the same, by its owners.

Three members in one process, as in benchmarks/allreduce_shoal.py: real networks, real votes, no model.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from shoal.node.run.driver import Driver
from shoal.node.run.payload_sources import PayloadSources
from shoal.protocol.averaging.events import Committed
from shoal.protocol.averaging.policy import Base, Policy, Ready
from shoal.protocol.averaging.shelf import Decision
from shoal.protocol.base.effects import Event
from shoal.protocol.base.ids import NO_DIGEST, Digest, PeerId, RunId, content_hash
from shoal.protocol.base.wire import Message
from shoal.protocol.log.register import Rules, voters_root
from shoal.protocol.log.shortcuts import START
from shoal.protocol.member.facts import FOUNDING_LIFE, RunFacts
from shoal.protocol.member.member import Member
from shoal.protocol.member.past import Kept, recall
from shoal.protocol.membership.members import PeerUp
from shoal.protocol.messages.averaging import Contribution, Mean
from shoal.protocol.messages.log import VoteFile
from shoal.protocol.net.bulk.backlog import LatePayload
from shoal.protocol.net.peers.network import Network
from shoal.protocol.net.peers.shared import Handlers
from shoal.protocol.net.system.identity import Identity
from shoal.protocol.tensors.compression import codec
from shoal.protocol.tensors.reduction import MeanReducer
from tests.integration.bulk_sockets import BulkSockets
from tests.integration.test_network import eventually
from tests.simulation.versions import Versions

RUN = RunId(content_hash(b"sockets that break"))
FP32 = codec("fp32")
CHUNK = 1 << 18  # values: 1 MiB
CHUNKS = 48
PEERS = 3


class NoDisk:
    """Nobody starts again here."""

    def put(self, name: str, record: Message) -> None:
        pass


class Peer:
    """A member that averages a constant, and what it decided."""

    def __init__(self, folder: Path, value: float) -> None:
        self.identity = Identity.generate()
        self.network = Network(self.identity, host="127.0.0.1", port=0)
        self.hear: Callable[[PeerId, Message], None] = self._receive
        folder.mkdir()
        self.folder = folder
        self.values = torch.full((CHUNK,), value)
        self.sources = PayloadSources(Versions())
        self.decisions: list[Decision] = []
        self.errors: list[Exception] = []

    async def start(self) -> None:
        await self.network.start(
            Handlers(
                takes=lambda run: True,
                shares_run=lambda peer: True,
                on_message=lambda peer, run, words: self.hear(peer, words),
                on_link=lambda peer, up: self.driver.link(peer, up),
            )
        )

    def _receive(self, peer: PeerId, words: Message) -> None:
        self.driver.receive(peer, words)

    def join(self, names: list[PeerId]) -> None:
        origin = Base(0, 0, NO_DIGEST, content_hash(b""))
        facts = RunFacts(Digest(RUN), names[0], origin, Policy(2, PEERS, PEERS, 1, (CHUNKS,)))
        founding, life = facts.register(), FOUNDING_LIFE + names.index(self.network.peer)
        signer, votes = self.identity.signer(RUN), VoteFile(life, voters_root(founding), 0, 0, None, None)
        member = Member(
            self.network.peer,
            self.network.addresses(),
            facts,
            recall(facts, Kept(founding, START, founding, (), votes), Rules(facts.trust, signer)),
            origin,
            signer,
            lambda _: MeanReducer([CHUNK] * CHUNKS, FP32, FP32),
            Versions(),
            random.Random(1),
        )
        self.member = member
        self.driver = Driver(member, self.folder, NoDisk(), self.sources, self._send, self.on_event, self.errors.append)
        self.driver.command(lambda now: member.start(now, [name for name in names if name != self.network.peer]))

    def _send(self, to: PeerId, message: Message, late: LatePayload | None) -> None:
        self.network.send(to, RUN, message, late)

    def on_event(self, event: Event) -> None:
        match event:
            case Committed(decision):
                self.decisions.append(decision)
            case PeerUp(peer, addresses):
                self.network.remember(peer, addresses)

    def submit(self) -> None:
        encoder = lambda chunk: FP32.encode(self.values)  # noqa: E731
        self.sources.submit(1, encoder)
        self.driver.command(lambda now: self.member.submit(now, Ready(1), encoder))


@asynccontextmanager
async def swarm(folder: Path) -> AsyncIterator[list[Peer]]:
    peers = [Peer(folder / str(number), number + 1.0) for number in range(PEERS)]
    async with AsyncExitStack() as stack:
        for peer in peers:
            await peer.start()
            stack.push_async_callback(peer.network.close)
        for peer in peers:
            for other in peers:
                if other is not peer:
                    peer.network.remember(other.network.peer, other.network.addresses())
        for peer in peers:
            peer.join([each.network.peer for each in peers])
        for peer in peers:
            await eventually(lambda peer=peer: len(peer.driver.member.membership.alive()) == PEERS - 1)  # type: ignore[misc]
        yield peers


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", [Contribution, Mean])
async def test_a_round_whose_sockets_are_shut_down_is_decided_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Contribution | Mean]
) -> None:
    sockets = BulkSockets(monkeypatch)
    async with swarm(tmp_path) as peers:
        victim, cut = peers[1], list[int]()
        taken = victim.hear

        def receive(peer: PeerId, message: Message) -> None:
            """Shut down all sockets that one peer has, once they have carried such a payload."""
            taken(peer, message)
            are_open = all(len(sockets.of(victim.network, sends=sends)) == PEERS - 1 for sends in (True, False))
            if not cut and are_open and isinstance(message, kind):
                cut.append(sum(sockets.shut_down(victim.network, sends=sends) for sends in (True, False)))

        victim.hear = receive
        for peer in peers:
            peer.submit()
        for peer in peers:
            await eventually(lambda peer=peer: peer.decisions)  # type: ignore[misc]
        assert cut == [2 * (PEERS - 1)], "all of its sockets were shut down in the midst"
        decisions = [peer.decisions[0] for peer in peers]
        assert {made.epoch for decision in decisions for made in decision.means} == {0}, "no owner was replaced"
        assert {len(decision.payloads) for decision in decisions} == {CHUNKS}
        means = {bytes(payload) for decision in decisions for payload in decision.payloads}
        assert len(means) == 1, "all hold the same bytes, of all members"
        place = torch.empty(CHUNK)
        FP32.decode(means.pop(), CHUNK, place)
        assert np.allclose(place, sum(range(1, PEERS + 1)) / PEERS)
        assert not any(peer.errors for peer in peers)
