"""What a member reports of itself: that others can dial it is told at once, all else with its next base."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from shoal.protocol.base.effects import Effect, Send, Wake
from shoal.protocol.base.ids import NO_DIGEST, PeerId
from shoal.protocol.base.signing import signed
from shoal.protocol.member.presence import Presence
from shoal.protocol.messages.membership import Entry, Gossip, News, RunStatus
from tests.simulation import oracle, replicas, swarm
from tests.simulation.signing import FakeSigner

ME, OTHER = PeerId("a"), PeerId("b")
PEERS = [ME, OTHER]
STATUS = RunStatus(0, NO_DIGEST, NO_DIGEST, "training", 0, 0, None, True, 0, 0, "unknown")
WAITING = 3  # members that the run needs, so that no round is over


def of_agreed_run() -> Presence:
    return swarm.Peer(ME, PEERS, {}, random.Random(1), oracle.Oracle(), swarm.Shape(start_members=WAITING)).member


def of_replicas() -> Presence:
    shape = replicas.Shape(start_members=WAITING)
    return replicas.Replica(ME, PEERS, {}, random.Random(1), replicas.Oracle(), shape, 0).member


@pytest.fixture(params=[of_agreed_run, of_replicas])
def member(request: pytest.FixtureRequest) -> Presence:
    """A started member that knows another, and has nothing to tell it."""
    make: Callable[[], Presence] = request.param
    made = make()
    made.start(0.0, [])
    entry = signed(Entry(OTHER, 0, 0, (), STATUS, False, b""), FakeSigner(OTHER))
    gossiped(made, 0.0, made.receive(0.0, OTHER, Gossip(entry, News((), ()), True)))
    return made


def gossiped(member: Presence, now: float, effects: list[Effect]) -> list[RunStatus]:
    """The member's own status, as often as it gossips it upon these effects, made at `now`, until it has no news."""
    told: list[RunStatus] = []
    while wakes := [each for each in effects if isinstance(each, Wake) and each.timer.name == "gossip"]:
        now += wakes[0].after
        effects = member.fire(now, wakes[0].timer)
        sent = [each.message for each in effects if isinstance(each, Send)]
        told += [message.entry.status for message in sent if isinstance(message, Gossip)]
    return told


def report(member: Presence, now: float, step: int, reachability: str) -> list[Effect]:
    return member.report(now, step=step, samples=9, loss=None, reachability=reachability, line=(0, 0))


@pytest.mark.parametrize("word", ["public", "nat"])
def test_that_others_can_dial_it_or_cannot_is_told_at_once(member: Presence, word: str) -> None:
    told = gossiped(member, 5.0, report(member, 5.0, 5, word))
    assert told
    assert all(status == member.status and status.reachability == word for status in told)
    assert not gossiped(member, 9.0, report(member, 9.0, 6, word)), "it is no news any more"


def test_its_progress_waits_for_the_next_base(member: Presence) -> None:
    assert not gossiped(member, 5.0, report(member, 5.0, 5, "unknown"))
    assert member.status.step == 5


def test_whoever_stays_silent_tells_it_when_it_is_back(member: Presence) -> None:
    member.step_aside(5.0)
    assert not gossiped(member, 6.0, report(member, 6.0, 5, "public"))
    member.come_back(7.0)
    told = member.membership.status(ME)
    assert told is not None
    assert told.reachability == "public"
