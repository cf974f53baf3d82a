"""One peer of Shoal's round: the network, cores, codecs and vote record of the daemon, without a model and a worker.

The clock runs from `submit` until the committed means are decoded into one vector; the outer step is not in it.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from kit.loopback import carried
from kit.peer import Fleet
from kit.vectors import Floats, mean_error, vector

from shoal.node.run.driver import Driver
from shoal.node.run.log_store import LogStore
from shoal.node.run.payload_sources import PayloadSources
from shoal.protocol.averaging.chunks import chunk_bounds, fitting_bytes
from shoal.protocol.averaging.events import Committed
from shoal.protocol.averaging.policy import Base, Policy, Ready
from shoal.protocol.averaging.reducer import Contribute
from shoal.protocol.averaging.shelf import Decision
from shoal.protocol.base.effects import Event
from shoal.protocol.base.ids import Digest, PeerId, RunId, content_hash, digest
from shoal.protocol.log.register import Rules
from shoal.protocol.log.trust import Crash
from shoal.protocol.member.facts import RunFacts
from shoal.protocol.member.member import Member
from shoal.protocol.member.past import recall
from shoal.protocol.membership.members import PeerUp
from shoal.protocol.net.peers.network import Network
from shoal.protocol.net.peers.shared import Handlers
from shoal.protocol.net.system.identity import Identity
from shoal.protocol.tensors.compression import codec
from shoal.protocol.tensors.reduction import MeanReducer

RUN = RunId(content_hash(b"benchmark"))


class Peer:
    """A member of the run that only averages."""

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        self._task = fleet.task
        self._codec = codec(fleet.task.codec)
        self._bounds = chunk_bounds(
            fleet.task.elements, fitting_bytes(fleet.task.elements, self._codec.bytes_for), self._codec.block
        )
        self._mean: Floats = np.zeros(fleet.task.elements, np.float32)
        self._identity = Identity.generate()
        self._folder = folder
        self._committed: asyncio.Queue[Decision] = asyncio.Queue()
        self.network = Network(self._identity, host=fleet.task.host, port=0)
        self._sources = PayloadSources(NoState())
        self._is_in = False

    async def start(self) -> None:
        """Starts the network; until it is in the run it drops what the others say."""
        await self.network.start(
            Handlers(
                takes=lambda run: self._is_in,
                shares_run=lambda peer: True,
                on_message=lambda peer, run, words: self.driver.receive(peer, words),
                on_link=lambda peer, up: self.driver.link(peer, up) if self._is_in else None,
                on_payload_done=lambda peer, run, words, sent: self._member.left(self.driver.now(), peer, words, sent),
            )
        )

    async def join(self, addresses: list[str]) -> None:
        """Joins the run of the peers at `addresses`, the first of which is its creator."""
        names = [PeerId(address.rpartition("/p2p/")[2]) for address in addresses]
        for name, address in zip(names, addresses, strict=True):
            if name != self.network.peer:
                self.network.remember(name, [address])
        policy = Policy(2, len(names), len(names), 1, (len(self._bounds),))
        base = Base(0, 0, digest("benchmark"), content_hash(b""))
        facts, signer = RunFacts(digest("run", RUN), names[0], base, policy), self._identity.signer(RUN)
        rules = Rules(Crash(), signer)
        self._store = store = LogStore(self._folder)
        member = Member(
            self.network.peer,
            self.network.addresses(),
            facts,
            recall(facts, store.open(facts.register(), rules, self.network.peer == names[0]), rules),
            base,
            signer,
            lambda _: MeanReducer([stop - start for start, stop in self._bounds], self._codec, self._codec),
            NoState(),
            random.Random(),
        )
        self._member = member
        self.driver = Driver(
            member,
            self._folder,
            store,
            self._sources,
            lambda to, message, late: self.network.send(to, RUN, message, late),
            self._on_event,
            _give_up,
        )
        self._is_in = True
        self.driver.command(lambda now: member.start(now, [name for name in names if name != self.network.peer]))
        while len(member.membership.alive()) < len(names) - 1:
            await asyncio.sleep(0.01)

    async def average(self, number: int, mine: Floats) -> tuple[Floats, float, float, int | None]:
        """One round: the mean, when we submitted, when we held it, and what the loopback had carried by then."""
        ready = Ready(1, *self.network.bandwidth.claim()) if self._task.claims else Ready(1)
        submitted = time.monotonic()
        contribution = self._encoder(mine)
        self._sources.submit(number, contribution)
        self.driver.command(lambda now: self._member.submit(now, ready, contribution))
        decision = await self._committed.get()
        mean = self._mean
        flat = torch.from_numpy(mean)
        for (start, stop), payload in zip(self._bounds, decision.payloads, strict=True):
            self._codec.decode(payload, stop - start, flat[start:stop])
        held, bytes = time.monotonic(), carried()
        root = decision.result.base_root  # as if the step had changed nothing
        self.driver.command(lambda now: self._member.applied(now, root))
        return mean, submitted, held, bytes

    async def snapshot(self, round: int) -> None:
        """As a node does that has a snapshot of its state: the means before are needed no more."""
        await self.driver.settled()
        await asyncio.to_thread(self._store.forget_means, round)

    def sockets(self) -> int:
        """The largest number of sockets to any one member."""
        return max((link.sockets for link in self.network.links()), default=0)

    def _encoder(self, vector: Floats) -> Contribute:
        flat = torch.from_numpy(vector)
        return lambda chunk: self._codec.encode_view(flat[slice(*self._bounds[chunk])])

    def _on_event(self, event: Event) -> None:
        match event:
            case Committed(decision):
                self._committed.put_nowait(decision)
            case PeerUp(peer, addresses):
                self.network.remember(peer, addresses)


class NoState:
    """A state store without versions, as no member joins late here."""

    size = 0

    def versions(self) -> list[int]:
        """None."""
        return []

    def describe(self, round: int) -> tuple[bytes, tuple[Digest, ...]] | None:
        """There is none."""
        return None

    def chunk(self, round: int, index: int) -> bytes:
        """Never asked either."""
        raise KeyError(round)

    def pin(self, round: int) -> bool:
        """There is none."""
        return False

    def unpin_all_but(self, rounds: object) -> None:
        """Nothing is pinned."""

    def begin(self, round: int, layout: bytes, hashes: object) -> set[int]:
        """Nothing is downloaded."""
        raise KeyError(round)

    def put(self, index: int, payload: object) -> None:
        """Nothing comes."""
        raise KeyError(index)

    def drop(self) -> None:
        """Nothing to drop."""


def _give_up(error: Exception) -> None:
    raise SystemExit(f"the member has failed: {error!r}")


async def main(folder: Path) -> None:
    """Be a peer until there are no more rounds."""
    torch.set_num_threads(1)
    fleet = Fleet()
    peer = Peer(fleet, folder)
    await peer.start()
    try:
        addresses = await asyncio.to_thread(fleet.meet, peer.network.addresses()[0])
        await peer.join(addresses)
        fleet.say(joined=True)
        while (number := await asyncio.to_thread(fleet.next_round)) is not None:
            await _lap(fleet, peer, number)
    finally:
        await peer.network.close()


async def _lap(fleet: Fleet, peer: Peer, number: int) -> None:
    task = fleet.task
    mine = await asyncio.to_thread(vector, task.seed, number, task.rank, task.elements)
    await asyncio.to_thread(fleet.wait_for_go)
    before = time.process_time()
    mean, submitted, held, bytes = await peer.average(number, mine)
    cpu = time.process_time() - before
    error = await asyncio.to_thread(mean_error, mean, task.seed, number, task.peers)
    await peer.snapshot(number)
    fleet.say(
        submitted=submitted,
        held=held,
        carried=bytes,
        error=error,
        cpu=cpu,
        line=peer.network.bandwidth.claim(),
        sockets=peer.sockets(),
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        asyncio.run(main(Path(scratch)))
