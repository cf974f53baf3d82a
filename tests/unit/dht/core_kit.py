"""Contacts, tables and askers for the tests of the DHT's core."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence

from shoal.dht.calls import Calls
from shoal.dht.effects import Call
from shoal.dht.keys import BITS, K, node_id
from shoal.dht.table import Table
from shoal.protocol.base.effects import Tell, Wake
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import DIGEST_SIZE, Digest, PeerId
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.dht import Contact, FindNode, Nodes
from tests.simulation.dht_world import make_address, make_peer

NOW = 1_800_000_000.0
RNG = random.Random("core kit")
ME = make_peer(RNG)


def contact(peer: PeerId | None = None, *addresses: str) -> Contact:
    """A contact with a public address."""
    return Contact(peer or make_peer(RNG), addresses or (make_address(RNG),))


def contacts(count: int, rng: random.Random = RNG) -> list[Contact]:
    """`count` contacts; with a generator of your own they do not depend on what other tests have drawn."""
    return [Contact(make_peer(rng), (make_address(rng),)) for _ in range(count)]


def in_bucket(bits: int, count: int, *addresses: str) -> list[Contact]:
    """Contacts whose distance from ME has `bits` bits; they are found by trying, so use a high number."""
    found: list[Contact] = []
    while len(found) < count:
        peer = make_peer(RNG)
        if (node_id(peer) ^ node_id(ME)).bit_length() == bits:
            found.append(contact(peer, *addresses))
    return found


FAR = BITS  # the bucket with half of all nodes


def filled(known: Sequence[Contact], now: float = NOW, settled: bool = True) -> Table:
    """A table that has heard from these contacts in turn: it keeps K of each bucket, and all around ME."""
    table = Table(ME)
    for each in known:
        table.add(now, each)
    for _, bucket in table.buckets():
        bucket.refreshed, bucket.is_settled = now, settled
    return table


def contacts_near(target: int, count: int, servers: int, rng: random.Random = RNG) -> list[Contact]:
    """Contacts nearer to `target` than any of `servers` honest servers is likely to be."""
    found: list[Contact] = []
    while len(found) < count:
        peer = make_peer(rng)
        if node_id.__wrapped__(peer) ^ target < (1 << BITS) // (3 * servers):
            found.append(Contact(peer, (make_address(rng),)))
    return found


def distance(each: Contact, target: int) -> int:
    return node_id(each.peer) ^ target


def as_digest(number: int) -> Digest:
    return Digest(number.to_bytes(DIGEST_SIZE, "big"))


class Witness:
    """An asker that records what it is told; it refuses answers of the type `refuses`."""

    def __init__(self, refuses: type[Message] | None = None) -> None:
        self.answers: list[Message] = []
        self.failures: list[Contact] = []
        self._refuses = refuses

    def answered(self, now: float, contact: Contact, answer: Message) -> None:
        if self._refuses is not None and isinstance(answer, self._refuses):
            raise RemoteError("no", contact.peer)
        self.answers.append(answer)

    def failed(self, now: float, contact: Contact) -> None:
        self.failures.append(contact)


class Wire:
    """The network behind `calls`: shows the outgoing calls, and answers them."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self.asks: list[Call] = []  # not answered yet
        self.wakes: list[Wake] = []
        self.told: list[object] = []

    def look(self) -> list[Call]:
        """Collect the effects since the last look; all calls that wait for an answer."""
        for effect in self._calls.drain():
            match effect:
                case Call():
                    self.asks.append(effect)
                case Wake():
                    self.wakes.append(effect)
                case Tell():
                    self.told.append(effect.event)
        return self.asks

    def answer(self, now: float, ask: Call, message: Message) -> None:
        self.asks.remove(ask)
        self._calls.answered(now, ask.number, message)
        self.look()

    def answer_again(self, now: float, ask: Call, message: Message) -> None:
        """A second answer comes to the same call."""
        self._calls.answered(now, ask.number, message)
        self.look()

    def fail(self, now: float, ask: Call) -> None:
        self.asks.remove(ask)
        self._calls.failed(now, ask.number)
        self.look()

    def lose_patience(self, now: float) -> None:
        """Let every timer that was set fire."""
        wakes, self.wakes = self.wakes, []
        for wake in wakes:
            self._calls.accept(now, wake.timer)
        self.look()


class Everybody:
    """A whole network that answers: honest peers name the nearest of all, liars only those of their own crowd."""

    def __init__(self, honest: Sequence[Contact], *crowds: Sequence[Contact]) -> None:
        self.all = [*honest, *(liar for crowd in crowds for liar in crowd)]
        self._known = {liar.peer: crowd for crowd in crowds for liar in crowd}

    def answer(self, wire: Wire, answer: Callable[[Call], Message | None] = lambda ask: None) -> None:
        """Answer all calls until there are no more: with what `answer` gives, else with the nearest contacts."""
        while wire.look():
            ask = wire.asks[0]
            wire.answer(NOW, ask, answer(ask) or self.nodes(ask))

    def nearest(self, asked: PeerId, target: Digest) -> tuple[Contact, ...]:
        """The contacts that `asked` names as the nearest to `target`."""
        number = int.from_bytes(target, "big")
        near = heapq.nsmallest(K + 1, self._known.get(asked, self.all), key=lambda each: distance(each, number))
        return tuple(each for each in near if each.peer != asked)[:K]

    def nodes(self, ask: Call) -> Nodes:
        assert isinstance(ask.message, FindNode)
        return Nodes(self.nearest(ask.to.peer, ask.message.target))
