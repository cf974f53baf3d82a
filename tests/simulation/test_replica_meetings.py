"""Requests to meet: which a member grants, which it refuses, and how far it lets others hurry it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from shoal.protocol.base.effects import Effect, Send
from shoal.protocol.base.ids import NO_DIGEST, PeerId
from shoal.protocol.messages.replicas import Decline, Meet, Refusal
from shoal.protocol.replicas.meeting import pairs
from tests.simulation.links import WAN
from tests.simulation.replicas import Replica, Shape, build
from tests.simulation.swarm import peers_named
from tests.simulation.test_replicas import all_at, partners_of
from tests.simulation.world import Step, World

A, B, STRANGER = peers_named(3)


def meet(sender: PeerId, ahead: int = 1, *, is_urgent: bool = False) -> Step[Replica]:
    """`sender` would meet in the round so many beyond the one after which the node stands."""
    return lambda node, now: node.receive(
        now, sender, Meet(node.standing + ahead, 7, 0, is_urgent, node.member.log.register.number)
    )


def declines(world: World[Replica]) -> list[tuple[PeerId, PeerId, Decline]]:
    """Filled with (from, to, message) from now on."""
    found: list[tuple[PeerId, PeerId, Decline]] = []

    def tap(peer: PeerId, effect: Effect) -> None:
        if isinstance(effect, Send) and isinstance(effect.message, Decline):
            found.append((peer, effect.to, effect.message))

    world.taps.append(tap)
    return found


@pytest.mark.parametrize("ahead", [1, 2])
@pytest.mark.parametrize("kind", ["keeper", "without a replica", "beyond the last round"])
def test_who_may_be_nobodys_partner_is_refused(kind: str, ahead: int) -> None:
    """A live member asks to be met that does not stand where partners are drawn from."""
    keepers = (STRANGER,) if kind == "keeper" else ()
    shape = Shape(start_members=2, keepers=keepers, slow=((A, 5.0), (B, 5.0)), last=1000)
    world, _ = build(1, 3, WAN, shape)
    member = world.node(STRANGER).member
    if kind != "keeper":
        said = {"round": 1001} if kind == "beyond the last round" else {"history": NO_DIGEST}
        member._placed = partial(replace, member.status, **said)  # type: ignore[method-assign,arg-type]
    world.run_until(lambda: all(world.node(name).standing >= 1 for name in (A, B)), within=60.0)
    world.run_until(lambda: world.node(A).member.phase == "training", within=60.0)
    answers, round = declines(world), world.node(A).standing + ahead
    world.command(A, meet(STRANGER, ahead))
    world.run(0.1)
    assert (A, STRANGER, Decline(round, Refusal.ABSENT)) in answers
    world.run_until(lambda: world.node(A).standing >= round + 1, within=60.0)
    assert STRANGER not in partners_of(world, A)
    assert not world.errors


def used_to_little_waiting(count: int) -> World[Replica]:
    """In the first round, that takes all of them twenty seconds or more; they have seen others come at once."""
    names = peers_named(count)
    world, _ = build(2, count, WAN, Shape(start_members=count, slow=tuple((name, 20.0) for name in names)))
    for name in names:
        for _ in range(9):
            world.node(name).member.exchanges._means.spread.observe(0.1)
    world.run(1.0)
    return world


@pytest.mark.parametrize("ahead", [1, 2])
def test_whom_the_draw_does_not_give_us_hurries_nobody(ahead: int) -> None:
    names = peers_named(4)
    world = used_to_little_waiting(4)
    partner = next(peer for pair in pairs(b"simulated", ahead, names) if A in pair for peer in pair if peer != A)
    other = next(name for name in names if name not in (A, partner))
    world.command(A, meet(other, ahead, is_urgent=True))
    world.run(15.0)
    assert not world.node(A).called


@pytest.mark.parametrize("ahead", [1, 2])
def test_who_says_that_it_is_urgent_waits_for_as_long_as_we_have_patience(ahead: int) -> None:
    world = used_to_little_waiting(2)
    patience = world.node(A).member.exchanges._means.patience()
    world.command(A, meet(B, ahead, is_urgent=True))
    world.run(patience - 0.1)
    assert not world.node(A).called
    world.run(1.0)
    assert world.node(A).called == [1]


def test_those_who_are_urged_teach_no_patience() -> None:
    world, oracle = build(3, 2, WAN, Shape(start_members=2, slow=((B, 30.0),)))
    world.run_until(partial(all_at, world, 5), within=200.0)
    assert world.node(B).called == [1, 2, 3, 4, 5]
    assert len(oracle.exchanged) >= 10
    assert [world.node(name).member.exchanges._means.spread.samples for name in (A, B)] == [0, 0]
