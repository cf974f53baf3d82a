"""Members that live and answer, but bring nothing or lie: the others go on without them."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from shoal.protocol.base.effects import Effect, Send
from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.rounds import Busy, Contribution, Fetched, Final, Have, Join, Retry
from shoal.protocol.rounds.agreement.roster import rank
from tests.simulation.campaign import build
from tests.simulation.links import LAN
from tests.simulation.oracle import Oracle
from tests.simulation.scenarios import _next_base
from tests.simulation.seeds import seeds
from tests.simulation.swarm import Peer
from tests.simulation.world import World

HOUR = 3600.0
SOON = 300.0  # virtual seconds; patience begins with ten


def wedge(node: Peer) -> None:
    """From now on the worker of `node` trains for ever."""

    def never(now: float) -> list[Effect]:
        return []

    node._submit = never  # type: ignore[method-assign]


def make_liar(node: Peer, is_waiting: bool) -> None:
    """From now on `node` brings no bytes and gives no attempt up, but always has a good excuse."""
    honest, count = node.member._digest, itertools.count(1_000_000)

    def digest(now: float, effects: list[Effect]) -> list[Effect]:
        said = []
        for effect in honest(now, effects):
            message = effect.message if isinstance(effect, Send) else None
            if isinstance(message, Busy):
                queued = {"sent": next(count), "taken": next(count), "is_waiting": False, "is_queued": True}
                excuse = {"is_waiting": True, "is_queued": False} if is_waiting else queued
                effect = Send(effect.to, dataclasses.replace(message, **excuse))  # type: ignore[union-attr]
            is_next = isinstance(message, Join | Retry) and message.attempt > 1
            if not isinstance(message, Contribution | Final | Fetched | Have) and not is_next:
                said.append(effect)
        return said

    node.member._digest = digest  # type: ignore[method-assign]


def swarm(seed: int, peers: int) -> tuple[World[Peer], Oracle, list[PeerId]]:
    """A swarm that trains, and the order in which its voters would lead."""
    world, oracle = build(seed, peers, LAN)
    base = _next_base(world, lambda base: len(base.voters) == peers)
    return world, oracle, rank(base, 1, base.voters)


@pytest.mark.parametrize(("peers", "wedged"), [(3, 1), (4, 1), (5, 2), (9, 4)])
@pytest.mark.parametrize("seed", seeds(2, 4))
def test_leaders_that_never_hand_in_are_gone_on_without(seed: int, peers: int, wedged: int) -> None:
    world, oracle, order = swarm(seed, peers)
    for peer in order[:wedged]:
        wedge(world.node(peer))
    goal = oracle.newest + 3
    world.run_until(lambda: oracle.newest >= goal, within=SOON)
    assert not world.errors


@pytest.mark.parametrize("is_waiting", [False, True])
@pytest.mark.parametrize("place", [0, 1, 3])
def test_who_brings_nothing_and_always_has_an_excuse_is_given_up(place: int, is_waiting: bool) -> None:
    """The others go on in the same attempt, and in a small group soon: there are only so many payloads to move."""
    world, oracle, order = swarm(2, 4)
    liar = order[place]
    make_liar(world.node(liar), is_waiting)
    world.run_until(lambda: oracle.newest >= 4, within=HOUR)
    assert liar not in oracle.decisions[4].certificate.proposal.voters
    assert [reason for _, _, reason in oracle.aborts if reason == "no progress"] == []
    assert not world.errors


def test_without_a_quorum_of_those_who_are_ready_their_attempts_do_not_run_away() -> None:
    """Nobody could lead them anywhere; and who is ready at last must find them."""
    world, oracle, order = swarm(1, 4)
    submits = {peer: world.node(peer)._submit for peer in order[:3]}
    for peer in submits:
        wedge(world.node(peer))
    stuck_at, tried = oracle.newest, set()

    def tap(peer: PeerId, effect: Effect) -> None:
        if isinstance(effect, Send) and isinstance(effect.message, Join) and effect.message.round == stuck_at + 1:
            tried.add(effect.message.attempt)

    world.taps.append(tap)
    world.run(600.0)
    assert oracle.newest == stuck_at
    assert tried == {1}
    for peer, submit in submits.items():
        world.node(peer)._submit = submit  # type: ignore[method-assign]
        world.command(peer, lambda node, now: node._submit(now))
    world.run_until(lambda: oracle.newest > stuck_at, within=SOON)
    assert not world.errors
