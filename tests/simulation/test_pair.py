"""Pairs on a bad network: complete or nothing, whatever is lost, repeated, or killed."""

from __future__ import annotations

import random

import pytest

from shoal.protocol.averaging.outbox import Outbox
from shoal.protocol.base.effects import Effect, Event, Timer, Wake
from shoal.protocol.base.estimate import Estimate
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import Message, Payload
from shoal.protocol.messages.replicas import Chunk
from shoal.protocol.replicas.pair import (
    PAIR_MESSAGES,
    Exchanged,
    PairExchange,
    Pairing,
    PartnerLost,
    key_of,
    usual_length,
)
from tests.simulation.links import Link
from tests.simulation.node import Node
from tests.simulation.world import Disk, World

CHUNKS = 12
LEFT, RIGHT = PeerId("left"), PeerId("right")


class PairNode(Node):
    """One peer in one exchange."""

    def __init__(self, me: PeerId, now: float) -> None:
        partner = RIGHT if me == LEFT else LEFT
        pairing, pace = Pairing(partner, 1, 0, CHUNKS), Estimate(initial=1.0, floor=1.0, ceiling=4.0)
        self.outbox = Outbox(key_of)
        self.me = me
        self.exchange = PairExchange(now, pairing, lambda *_: None, self.outbox, pace, usual_length())
        self.told: list[Event] = []

    def start(self, now: float) -> list[Effect]:
        return [*self.exchange.start(now), Wake(0.5, Timer("app", "tick", 0))]

    def receive(self, now: float, sender: PeerId, message: Message) -> list[Effect]:
        assert isinstance(message, PAIR_MESSAGES)
        return self.exchange.receive(now, sender, message)

    def fire(self, now: float, timer: Timer) -> list[Effect]:
        return [*self.exchange.tick(now), Wake(0.5, timer)]

    def on_event(self, now: float, event: Event) -> list[Effect]:
        self.told.append(event)
        return []

    def payload_of(self, message: Message) -> Payload:
        assert isinstance(message, Chunk)
        return f"{self.me} {message.chunk}".encode()

    def on_left(self, now: float, to: PeerId, message: Message, sent: bool) -> None:
        if sent:
            self.outbox.sent(now, to, message)
        else:
            self.outbox.dropped(to, message)


@pytest.mark.parametrize("seed", range(60))
def test_whole_or_nothing_and_once(seed: int) -> None:
    rng = random.Random(f"pair {seed}")
    link = Link(0.05, 0.3, loss=rng.choice((0.0, 0.05, 0.1)), duplicate=rng.choice((0.0, 0.3)))

    def make(peer: PeerId, now: float, disk: Disk, rng: random.Random) -> PairNode:
        return PairNode(peer, now)

    world = World(make, seed, link)
    world.start(LEFT)
    world.start(RIGHT)
    dies = rng.random() < 0.4
    if dies:
        world.at(rng.uniform(0.0, 1.0), lambda: world.kill(RIGHT))
    world.run_until(lambda: all(node.told for node in world.nodes()), within=120.0)
    world.run(5.0)
    for peer, partner in ((LEFT, RIGHT), (RIGHT, LEFT)):
        bytes_of = tuple(f"{partner} {chunk}".encode() for chunk in range(CHUNKS))
        events = world.node(peer).told
        assert len(events) <= 1
        told = events[0] if events else None
        if isinstance(told, Exchanged):
            assert (told.round, told.partner, told.payloads) == (1, partner, bytes_of)
            assert told.is_mutual or dies
        else:
            assert dies
            assert told in (None, PartnerLost(partner))
    assert not world.errors
