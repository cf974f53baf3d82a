"""With every codec, members hold the same bytes after a round in which an owner died, near the true mean."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from functools import partial

import pytest
from torch import Tensor

from shoal.node.lab.codecs import CODECS
from shoal.protocol.averaging.exchange import Exchange, Self
from shoal.protocol.averaging.shelf import Shelf
from shoal.protocol.base.effects import Effect, Send
from shoal.protocol.base.ids import NO_DIGEST, PeerId
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.averaging import Contribution, Give, Have, Mean
from shoal.protocol.tensors.compression import Codec
from shoal.protocol.tensors.reduction import MeanReducer
from tests.simulation.signing import FakeSigner
from tests.unit.rounds_kit import BRANCH, CHUNKS, LIVES, PEERS, ROUND, A, B, C, seats
from tests.unit.test_compression import normal

SIZE = 5000
WEIGHTS = {A: 10, B: 30}
DEAD = C


def change(peer: PeerId, chunk: int) -> Tensor:
    return normal(SIZE, 10 * PEERS.index(peer) + chunk)


def member(me: PeerId, codec: Codec) -> Exchange:
    reducer, shelf = MeanReducer([SIZE] * CHUNKS, codec, codec), Shelf()
    shelf.open(reducer)
    us = Self(me, lambda: (BRANCH,), 0, FakeSigner(me), lambda: LIVES[me])
    return Exchange(us, ROUND, NO_DIGEST, CHUNKS, reducer, shelf, tuple)


def contribution(codec: Codec, me: PeerId, chunk: int) -> bytes:
    return bytes(codec.encode(change(me, chunk)))


def filled(codec: Codec, sender: PeerId, send: Send) -> Message:
    """The message as it is sent."""
    if not send.is_late:
        return send.message
    assert isinstance(send.message, Contribution)
    return replace(send.message, payload=contribution(codec, sender, send.message.chunk))


def deliver(codec: Codec, cores: dict[PeerId, Exchange], effects: dict[PeerId, list[Effect]]) -> None:
    """Until nothing is under way any more."""
    under_way: deque[tuple[PeerId, PeerId, Message]] = deque()

    def put(sender: PeerId, made: list[Effect]) -> None:
        under_way.extend((sender, each.to, filled(codec, sender, each)) for each in made if isinstance(each, Send))

    for peer, made in effects.items():
        put(peer, made)
    while under_way:
        sender, to, message = under_way.popleft()
        if to in cores:
            put(to, received(cores[to], sender, message))


def received(core: Exchange, sender: PeerId, message: Message) -> list[Effect]:
    match message:
        case Contribution():
            return core.receive_contribution(sender, message)
        case Mean():
            return core.receive_mean(sender, message)[1]
        case Have():
            return core.receive_have(sender, message)
        case Give():
            return core.answer(sender, message)
    return []


def given(core: Exchange, chunk: int) -> Mean:
    """The mean of a chunk, as whoever asks for it gets it."""
    (send,) = core.answer(DEAD, Give(0, ROUND, (), (chunk,), ()))
    assert isinstance(send, Send)
    assert isinstance(send.message, Mean)
    return send.message


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_the_living_hold_the_same_bytes(codec: Codec) -> None:
    cores = {peer: member(peer, codec) for peer in WEIGHTS}
    for core in cores.values():
        core.seat(seats())
        for peer, weight in WEIGHTS.items():
            core.offer(peer, weight)

    def contribute(me: PeerId) -> list[Effect]:
        return cores[me].contribute(WEIGHTS[me], partial(contribution, codec, me))

    deliver(codec, cores, {me: contribute(me) for me in cores})
    deliver(codec, cores, {peer: core.lose(DEAD) for peer, core in cores.items()})
    moves = cores[A].moves([DEAD], ())
    deliver(codec, cores, {peer: core.move(moves) for peer, core in cores.items()})
    one, other = cores[A], cores[B]
    assert one.is_complete
    assert one.table() == other.table()
    share = WEIGHTS[A] / sum(WEIGHTS.values())
    for chunk in range(CHUNKS):
        found = [given(core, chunk) for core in cores.values()]
        assert found[0] == found[1]
        mean = share * change(A, chunk) + (1 - share) * change(B, chunk)
        assert (codec.decode(found[0].payload, SIZE) - mean).norm() < mean.norm()
