"""Which members an attempt says that it waits for; messages and bytes are tested in whole swarms."""

from __future__ import annotations

from typing import cast

import msgpack
import pytest

from shoal.protocol.base.estimate import Estimate
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.rounds import Contribution, Final
from shoal.protocol.rounds.agreement.certificate import mask_of
from shoal.protocol.rounds.agreement.voting import VoteState
from shoal.protocol.rounds.allreduce.outbox import Outbox
from shoal.protocol.rounds.allreduce.shelf import Shelf
from shoal.protocol.rounds.allreduce.wanted import Wanted
from shoal.protocol.rounds.attempt import Attempt
from shoal.protocol.rounds.fetching import Fetching
from shoal.protocol.rounds.matchmaking.context import Context, Means, View
from tests.simulation.facts import FactReducer
from tests.simulation.signing import FakeSigner
from tests.unit.rounds_kit import BASE, POLICY, ROUND, plan, roster

NOBODY = cast(View, None)  # an attempt does not ask who is alive: it is told
PLAN = plan()
LEADER, FOLLOWER, VICTIM = PLAN.members


def attempt(me: PeerId) -> Attempt:
    """A group of three that has just begun, as `me` sees it."""
    shelf = Shelf()
    shelf.open(FactReducer())
    spread, pace = Estimate(2.0, 0.5, 10.0), Estimate(2.0, 0.5, 10.0)
    means = Means(me, 0, FakeSigner(me), NOBODY, POLICY, shelf, Outbox(), spread, pace)
    context = Context(means, BASE, VoteState(ROUND, 0), tuple, Wanted())
    made = Attempt(context, roster(), FactReducer(), lambda chunk: fact(me, chunk), Fetching(means, ROUND), 0.0)
    made.start(0.0)
    return made


def fact(peer: PeerId, chunk: int) -> bytes:
    packed: bytes = msgpack.packb([peer, ROUND, b"", chunk, 1.0])
    return packed


def contribution(sender: PeerId, owner: PeerId) -> Message:
    chunk = PLAN.owners.index(owner)
    return Contribution(ROUND, 0, 1, chunk, (0, 0), fact(sender, chunk))


def final(owner: PeerId) -> Message:
    mask = mask_of(PLAN.members, PLAN.members)
    return Final(ROUND, 0, 1, PLAN.owners.index(owner), (0, 0), mask, b"mean")


@pytest.mark.parametrize(("me", "other"), [(FOLLOWER, LEADER), (LEADER, FOLLOWER)])
def test_whoever_brought_what_it_could_is_not_named_beside_the_one_that_owes_it(me: PeerId, other: PeerId) -> None:
    group = attempt(me)
    assert group.waiting_for() == [peer for peer in PLAN.members if peer != me]
    group.receive(1.0, other, contribution(other, me))
    assert group.waiting_for() == [VICTIM]  # the other one has no result either: it waits like us
    group.receive(2.0, VICTIM, contribution(VICTIM, me))
    group.receive(3.0, other, final(other))
    assert group.waiting_for() == [VICTIM]  # its result


def test_who_has_all_bytes_waits_for_the_leader() -> None:
    group = attempt(FOLLOWER)
    for sender in (LEADER, VICTIM):
        group.receive(1.0, sender, contribution(sender, FOLLOWER))
        group.receive(2.0, sender, final(sender))
    assert group.waiting_for() == [LEADER]
