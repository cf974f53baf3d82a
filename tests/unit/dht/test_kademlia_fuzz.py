"""Whatever strangers say to a node, unasked or in answer: it goes on, stores nothing, and its tables keep their bounds.

All that is said goes the way that it goes in a real node: through the codec, then through `heard`, then into the core.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal.dht.calls import IN_FLIGHT, MOST_QUEUED
from shoal.dht.effects import Blamed, Call, Effect, Got, Put
from shoal.dht.kademlia import Kademlia
from shoal.dht.keys import COPIES, REPLICAS, K
from shoal.dht.record import check_record
from shoal.dht.scope import Scope, scope_of, within_scope
from shoal.dht.store import LIMITS
from shoal.dht.table import PER_NARROW, PER_WIDE, WAITING, Bucket
from shoal.dht.vetting import MAX_ADDRESSES, PEER
from shoal.protocol.base.effects import Event, Tell, Timer, Wake
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import NODE_TAGS, Message, decode, encode
from shoal.protocol.messages.dht import (
    Contact,
    FindNode,
    FindRecords,
    Greet,
    Greeted,
    Nodes,
    Reached,
    Records,
    Store,
    Stored,
    StoreResult,
)
from shoal.protocol.messages.node import Refused
from tests.simulation.dht_world import make_address
from tests.unit.dht import hostile_kit
from tests.unit.dht.hostile_kit import NEAREST, PEERS, spoken_by
from tests.unit.dht.record_kit import ALICE, BOB, CAROL, KEY, NOW, key_of, signed_record, signer_of

ME = CAROL.peer
HERE = ("/ip4/7.7.7.7/tcp/4101",)
RNG = random.Random("kademlia fuzz")
SERVERS = [Contact(peer, (make_address(RNG),)) for peer in [*PEERS[:16], *NEAREST[:8]]]
HELD = signed_record(sequence=1)
MINE = signed_record(CAROL, key_of("mine"))
QUESTION = ((ALICE.peer, ""), (ALICE.peer, "x"), (BOB.peer, ""))
MOST_CALLS = 2000  # for one get and one put, whatever anybody answers


class Node:
    """A node among servers that have behaved so far; whatever it does, its promises are checked."""

    def __init__(self, scope: Scope = Scope.INTERNET, servers: Sequence[Contact] = SERVERS) -> None:
        self.core = Kademlia(ME, signer_of(CAROL), random.Random(1))
        self.scope = scope
        self.asks: list[Call] = []  # not answered yet
        self.timers: list[Timer] = []
        self.overdue: set[int] = set()  # numbers of the asks that are not waited for any longer
        self.told: list[Event] = []
        self.serving: set[PeerId] = set()  # who has said in an answer that it serves
        self.asked = 0
        self.most_held = 2  # HELD and MINE
        self._do(self.core.start(NOW))
        self._do(self.core.set_contact(NOW, HERE, True))
        self._do(self.core.meet(NOW, servers))
        while self.asks:
            ask = self.asks[0]
            self.answer(ask, honest(ask))
        self.core.serve(NOW, ALICE.peer, Store((HELD,), 0))

    def answer(self, ask: Call, message: Message) -> None:
        """`message` comes as the answer."""
        self.asks.remove(ask)
        said = within_scope(over_the_wire(message, ask.to.peer), self.scope)
        if isinstance(said, Greeted) and said.serves:
            self.serving.add(ask.to.peer)
        self._do(self.core.answered(NOW, ask.number, said))

    def fail(self, ask: Call) -> None:
        """No answer comes."""
        self.asks.remove(ask)
        self._do(self.core.failed(NOW, ask.number))

    def be_greeted(self, sender: PeerId, greet: Greet) -> bool:
        """Somebody greets us: with an answer, or blame and nothing changed; whether it was answered."""
        before, asks = self.core.contacts(), len(self.asks)
        try:
            answer, effects = self.core.serve(NOW, sender, within_scope(over_the_wire(greet, sender), self.scope))
        except RemoteError as error:
            blamed = error.peer
        else:
            self._do(effects)
            assert [(each.to.peer, type(each.message)) for each in self.asks[asks:]] in ([], [(sender, Greet)])
            assert answer == Greeted(HERE, True, NOW)
            return True
        assert (blamed, self.core.contacts()) == (sender, before)
        return False

    def lose_patience(self) -> None:
        """Every timer fires, those of the calls among them."""
        timers, self.timers = self.timers, []
        for timer in timers:
            self.overdue |= {int(timer.subject)} if timer.name == "patience" else set()
            self._do(self.core.fire(NOW + 3, timer))

    def meet(self, peers: Sequence[PeerId]) -> None:
        """Somebody has told us of these."""
        self._do(self.core.meet(NOW, [Contact(peer, HERE) for peer in peers]))

    def get_and_put(self) -> None:
        """Begin both."""
        self._do(self.core.get(NOW, 1, KEY, QUESTION))
        self._do(self.core.put(NOW, 2, MINE))

    def fail_all(self) -> None:
        """Nobody says anything any more, also to what was queued."""
        while self.asks:
            self.fail(self.asks[0])

    def end(self) -> tuple[Got, Put]:
        """Nobody says anything any more: both have ended."""
        self.fail_all()
        [got] = [event for event in self.told if isinstance(event, Got)]
        [put] = [event for event in self.told if isinstance(event, Put)]
        return got, put

    @property
    def blamed(self) -> list[PeerId]:
        return [event.peer for event in self.told if isinstance(event, Blamed)]

    # -- what holds, whatever anybody says ------------------------------------------------------------------

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Call(to=to):
                    assert to.peer != ME
                    assert PEER.fullmatch(to.peer)
                    assert len(to.addresses) <= MAX_ADDRESSES
                    assert all(self._is_within(address) for address in to.addresses)
                    self.asks.append(effect)
                    self.asked += 1
                case Wake(timer=timer):
                    self.timers.append(timer)
                case Tell(event):
                    self.told.append(event)
        assert sum(ask.number not in self.overdue for ask in self.asks) <= IN_FLIGHT
        assert self.asked <= MOST_CALLS
        for _, bucket in self.core._table.buckets():
            self._check(bucket)
        held, _ = self.core._store.find(NOW, KEY, (), 1 << 20)
        assert held in ((), (HELD,))
        assert self.core.records_held <= self.most_held

    def _check(self, bucket: Bucket) -> None:
        assert len(bucket.members) <= K
        assert len(bucket.waiting) <= WAITING
        everybody = bucket.members + bucket.waiting
        for known in everybody:
            assert known.contact.peer in self.serving - {ME}
            assert 0 < len(known.contact.addresses) <= MAX_ADDRESSES
            assert all(self._is_within(address) for address in known.contact.addresses)
        narrow, wide = (Counter(each for known in everybody for each in known.prefixes[n]) for n in (0, 1))
        assert max(narrow.values(), default=0) <= PER_NARROW
        assert max(wide.values(), default=0) <= PER_WIDE

    def _is_within(self, address: str) -> bool:
        return (scope_of(address) or Scope.LOOPBACK) >= self.scope


def over_the_wire(message: Message, sender: PeerId) -> Message:
    """The message as it arrives: encoded and decoded."""
    return decode(encode(message), sender, tags=NODE_TAGS)


def honest(ask: Call) -> Message:
    """The answer of an honest server that knows nobody."""
    return Greeted(ask.to.addresses, True, NOW) if isinstance(ask.message, Greet) else Nodes(())


# -- answers --------------------------------------------------------------------------------------------------

FITTING = {Greet: Greeted, FindNode: Nodes, FindRecords: Records, Store: Stored}
results = st.lists(st.sampled_from(StoreResult), max_size=3).map(tuple)
clocks = st.integers(0, 2**63 - 1) | st.just(NOW)


KINDS: dict[type[Message], st.SearchStrategy[Message]] = {
    Greeted: st.builds(Greeted, hostile_kit.addresses, st.booleans(), clocks),
    Nodes: st.builds(Nodes, hostile_kit.contacts),
    Records: st.builds(Records, hostile_kit.records, st.integers(0, 2**63 - 1), hostile_kit.contacts),
    Stored: st.builds(Stored, results) | st.builds(lambda one: Stored((one,)), st.sampled_from(StoreResult)),
    Refused: st.builds(Refused, st.text(max_size=9)),
    Reached: st.builds(Reached, hostile_kit.addresses),
    FindNode: st.just(FindNode(KEY)),
}
anything = st.one_of(*KINDS.values())
ANSWERS = {kind: KINDS[fitting] | KINDS[fitting] | anything for kind, fitting in FITTING.items()}  # the first go deeper


def said_by(speaker: PeerId, answer: Message) -> Message:
    """Where it names itself, with its name."""
    if isinstance(answer, Nodes | Records):
        return dataclasses.replace(answer, closer=spoken_by(speaker, answer.closer))
    return answer


@given(st.data(), st.sampled_from([Scope.LAN, Scope.INTERNET]))
@settings(max_examples=40)
def test_whatever_is_answered_a_get_and_a_put_end_and_nothing_else_happens(data: st.DataObject, scope: Scope) -> None:
    node = Node(scope)
    node.meet(PEERS[300:304])
    node.get_and_put()
    for _ in range(data.draw(st.integers(5, 60))):
        if not node.asks:
            break
        ask = data.draw(st.sampled_from(node.asks[:8]))
        match data.draw(st.integers(0, 9)):
            case 0:
                node.fail(ask)
            case 1:
                node.lose_patience()
            case _:
                node.answer(ask, said_by(ask.to.peer, data.draw(ANSWERS[type(ask.message)])))
    got, put = node.end()
    for found in got.found:
        check_record(found.record, NOW, signer_of(CAROL), ME)
        assert found.record.key == KEY
        assert (found.record.author, found.record.subkey) in QUESTION
    assert 0 <= put.held <= put.wanted <= COPIES * REPLICAS


WRONG = [Greeted(HERE, True, NOW), Nodes(()), Records((), 0, ()), Stored((StoreResult.HELD,)), Reached(())]


@pytest.mark.parametrize("answer", WRONG, ids=lambda answer: type(answer).__name__)
def test_an_answer_of_another_type_is_blamed(answer: Message) -> None:
    node = Node()
    node.get_and_put()
    node.meet(PEERS[300:310])
    asks = [ask for ask in node.asks if FITTING[type(ask.message)] is not type(answer)]
    assert asks
    for ask in asks:
        node.answer(ask, answer)
    assert set(node.blamed) == {ask.to.peer for ask in asks}
    assert not set(node.blamed) & {contact.peer for contact in node.core.contacts()}
    node.end()


def test_who_names_us_to_us_does_not_make_us_ask_ourselves() -> None:
    """Who joins looks for itself: nobody is nearer."""
    node = Node(servers=[])
    node.meet(PEERS[:3])
    while node.asks:
        is_greeting = isinstance(node.asks[0].message, Greet)
        node.answer(node.asks[0], Greeted(HERE, True, NOW) if is_greeting else Nodes((Contact(ME, HERE),)))
    assert node.core.has_joined


# -- greetings ------------------------------------------------------------------------------------------------

greetings = st.builds(Greet, hostile_kit.addresses, st.booleans())
greeters = st.sampled_from([*[contact.peer for contact in SERVERS] * 5, *PEERS[100:150], ME])


@given(st.lists(st.tuples(greeters, greetings), max_size=40), st.sampled_from([Scope.LAN, Scope.INTERNET]))
@example([(each.peer, Greet(hostile_kit.CROWDED, True)) for each in SERVERS], Scope.INTERNET)
@settings(max_examples=60)
def test_whoever_greets_us_and_how_nobody_gets_in_by_that(greeted: list[tuple[PeerId, Greet]], scope: Scope) -> None:
    """What is blamed leaves nothing behind: a node that has not heard it does the same from then on."""
    node, spared = Node(scope), Node(scope)
    for sender, greet in [*greeted, *((sender, Greet(HERE, True)) for sender, _ in greeted)]:
        if node.be_greeted(sender, greet):
            spared.be_greeted(sender, greet)
        assert (node.asks, node.core.contacts()) == (spared.asks, spared.core.contacts())


def test_who_comes_and_goes_without_end_makes_us_queue_a_bounded_number_of_calls() -> None:
    """Each time it comes it is given what lies near to it: here all that we hold, since nobody else is there."""
    node, sender = Node(servers=[]), PEERS[0]
    node.most_held = LIMITS.per_peer
    for number in range(node.most_held - 1):
        record = signed_record(key=key_of(str(number)))
        node.core._store.put(NOW, record, 0, PEERS[number % 300])
    for _ in range(3000):
        node.be_greeted(sender, Greet((), False))
        node.be_greeted(sender, Greet(HERE, True))
        if node.asks and isinstance(node.asks[-1].message, Greet):
            node.answer(node.asks[-1], Greeted(HERE, True, NOW))
    assert any(isinstance(ask.message, Store) for ask in node.asks)
    before = node.asked
    node.fail_all()
    assert node.asked - before <= MOST_QUEUED
