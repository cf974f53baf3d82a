"""Joiners, and members that were left behind, copy one signed replica completely, whoever lies or dies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from shoal.protocol.base.effects import Effect, Send
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import MAX_INT
from shoal.protocol.messages.replicas import GetReplica
from shoal.protocol.messages.transfer import GetStateChunk, StateChunk
from shoal.protocol.replicas.events import Exchanged, Lapse
from tests.simulation.links import WAN
from tests.simulation.replicas import ABSURD, STATE_CHUNKS, Oracle, Replica, Shape, build
from tests.simulation.swarm import peers_named
from tests.simulation.world import World

NAMES = peers_named(5)
LATE = NAMES[4]
Serve = Callable[[float, PeerId, GetStateChunk], list[Effect]]


def swarm(seed: int, window: int = 8) -> tuple[World[Replica], Oracle]:
    """Four members at round 4 or so, and a fifth that is about to join."""
    shape = Shape(start_members=4, joiners=(LATE,), window=window)
    world, oracle = build(seed, 4, WAN, shape, newcomers=1)
    world.run_until(lambda: all(node.standing >= 4 for node in world.nodes()), within=60.0)
    return world, oracle


def takes_part(oracle: Oracle, peer: PeerId) -> bool:
    """Whether others have met it."""
    return any(event.partner == peer for event in oracle.exchanged.values())


def test_a_joiner_copies_one_replica_and_takes_part() -> None:
    world, oracle = swarm(1)
    world.start(LATE)
    world.run_until(lambda: takes_part(oracle, LATE), within=60.0)
    ((peer, copy),) = oracle.copies
    assert peer == LATE
    assert copy.donor in NAMES[:4]
    assert copy.round >= 4
    assert not world.errors


def test_one_that_was_away_for_long_copies_and_one_that_was_for_a_moment_goes_on() -> None:
    for pause, copies in ((6.0, 0), (60.0, 1)):
        world, oracle = swarm(2, window=6)
        away = NAMES[2]
        world.pause(away)
        world.run(pause)
        world.resume(away)
        before = world.node(away).standing
        world.run(20.0)
        newest = max(node.standing for node in world.nodes())
        assert world.node(away).standing >= newest - 2 > before
        assert len(oracle.copies) == copies
        assert any(isinstance(told, Exchanged) and told.round > newest - 4 for told in _of(oracle, away))


def _of(oracle: Oracle, peer: PeerId) -> list[Exchanged]:
    return [event for (who, _, _), event in oracle.exchanged.items() if who == peer]


@pytest.mark.parametrize("lies", [True, False])
def test_a_donor_that_lies_is_named_and_one_that_dies_replaced(lies: bool) -> None:
    world, oracle = swarm(3)
    donors: list[PeerId] = []

    def tap(peer: PeerId, effect: Effect) -> None:
        if not donors and isinstance(effect, Send) and isinstance(effect.message, StateChunk):
            donors.append(peer)
            if lies:
                _lie(world.node(peer))
            else:
                world.kill(peer)

    world.taps.append(tap)
    world.start(LATE)
    world.run_until(lambda: takes_part(oracle, LATE), within=120.0)
    assert [each.peer for each in world.node(LATE).blamed] == (donors if lies else [])
    assert [copy.donor == donors[0] for _, copy in oracle.copies] == [False]


def _lie(node: Replica) -> None:
    """From now on every chunk of the replica that `node` serves is wrong."""
    store = node.store
    store.chunk = lambda round, index: b"a lie"  # type: ignore[method-assign]


def asked_of(world: World[Replica]) -> list[tuple[float, PeerId]]:
    """When and whom anybody asks for its replica, from now on."""
    asked: list[tuple[float, PeerId]] = []

    def tap(peer: PeerId, effect: Effect) -> None:
        if isinstance(effect, Send) and isinstance(effect.message, GetReplica):
            asked.append((world.now, effect.to))

    world.taps.append(tap)
    return asked


@pytest.mark.parametrize("lies", [False, True])
def test_a_donor_of_no_use_is_left_alone_for_a_while_and_others_come_first(lies: bool) -> None:
    """Nobody has what it offers when chunks are asked for, or all sign replicas of another run's layout."""
    world, oracle = swarm(8)
    asked = asked_of(world)
    for name in NAMES[:4]:
        store = world.node(name).store
        if lies:
            store.describe = lambda round: (b"another layout", ())  # type: ignore[method-assign]
        else:
            store.chunk = lambda round, index: b""  # type: ignore[method-assign]
    world.start(LATE)
    world.run(60.0)
    assert not oracle.copies
    assert {peer for _, peer in asked[:4]} == set(NAMES[:4])
    pauses = [b - a for a, who in asked for b, other in asked if who == other and a < b]
    assert min(pauses) > 2.9
    assert 5 <= len(asked) <= 16


def test_chunks_that_are_lost_are_asked_for_again_and_the_copy_goes_on() -> None:
    world, oracle = swarm(9)
    asked, lost = asked_of(world), list[int]()
    donors = [world.node(name) for name in NAMES[:4]]
    for donor in donors:
        serve = partial(_lose_first, lost, donor.member.copying.donor.serve)
        donor.member.copying.donor.serve = serve  # type: ignore[method-assign]
    world.start(LATE)
    world.run_until(lambda: bool(oracle.copies), within=30.0)
    assert len(lost) == 1
    assert len(asked) == 1


@pytest.mark.parametrize("seed", range(3))
def test_one_that_is_killed_at_half_copies_the_other_half(seed: int) -> None:
    """It asks the same donor, which holds that replica for it still."""
    world, _ = swarm(seed)
    world.start(LATE)

    def kill_at_half(peer: PeerId) -> None:
        if world.is_alive(LATE) and world.node(LATE).member.progress()[0] >= STATE_CHUNKS // 2:
            world.kill(LATE)

    world.watchers.append(kill_at_half)
    world.run_until(lambda: not world.is_alive(LATE), within=20.0)
    world.watchers.remove(kill_at_half)
    world.run(4.0)
    chunks = list[int]()

    def tap(peer: PeerId, effect: Effect) -> None:
        if peer == LATE and isinstance(effect, Send) and isinstance(effect.message, GetStateChunk):
            chunks.append(effect.message.index)

    world.taps.append(tap)
    world.start(LATE)
    world.run_until(lambda: world.node(LATE).standing >= 0, within=20.0)
    assert 0 < len(chunks) <= STATE_CHUNKS - STATE_CHUNKS // 2


def _lose_first(lost: list[int], serve: Serve, now: float, sender: PeerId, message: GetStateChunk) -> list[Effect]:
    """The first chunk that anybody is to send is lost."""
    if lost:
        return serve(now, sender, message)
    lost.append(message.index)
    return []


def test_a_donor_that_has_signed_what_nobody_can_go_on_with_is_named_too() -> None:
    world, oracle = swarm(3)
    donors: list[PeerId] = []

    def tap(peer: PeerId, effect: Effect) -> None:
        if not donors and isinstance(effect, Send) and isinstance(effect.message, GetReplica):
            donors.append(effect.to)
            store = world.node(effect.to).store
            for round in store.versions():
                store.add(round, [ABSURD] * STATE_CHUNKS)

    world.taps.append(tap)
    world.start(LATE)
    world.run_until(lambda: takes_part(oracle, LATE), within=120.0)
    assert [each.peer for each in world.node(LATE).blamed] == donors
    assert "no replica can go on" in world.node(LATE).blamed[0].reason
    assert [copy.donor == donors[0] for _, copy in oracle.copies] == [False]


@pytest.mark.parametrize("lie", [101, MAX_INT])
def test_nobody_follows_words_beyond_the_last_round(lie: int) -> None:
    """Most of the others say that they are further than a run can be."""
    shape = Shape(start_members=2, last=100, joiners=(LATE,))
    world, oracle = build(6, 4, WAN, shape, newcomers=1)
    world.run_until(lambda: all(node.standing >= 2 for node in world.nodes()), within=60.0)
    for name in NAMES[:3]:
        member = world.node(name).member
        member._placed = partial(replace, member.status, round=lie)  # type: ignore[method-assign]
    world.start(LATE)
    world.run_until(lambda: takes_part(oracle, LATE), within=60.0)
    assert {(peer, copy.donor) for peer, copy in oracle.copies} == {(LATE, NAMES[3])}
    assert Lapse.BEHIND not in oracle.lapses
    assert not world.errors


@pytest.mark.parametrize("is_ready", [True, False])
def test_who_copies_for_nothing_goes_on_with_what_it_has_submitted(is_ready: bool) -> None:
    """The others name a round far beyond, so that one copies; then they take it back: it was ready, or becomes so."""
    slower = NAMES[:2] if is_ready else NAMES[2:3]
    shape = Shape(start_members=3, slow=tuple((name, 4.0) for name in slower))
    world, oracle = build(7, 3, WAN, shape)
    world.run_until(lambda: all(node.standing >= 2 for node in world.nodes()), within=60.0)
    lagging = world.node(NAMES[2])
    phase = "matching" if is_ready else "training"
    world.run_until(lambda: lagging.member.phase == phase, within=60.0)
    before, ahead = lagging.standing, [world.node(name).member for name in NAMES[:2]]
    truth = [member._placed for member in ahead]
    for member in ahead:
        member._placed = partial(replace, member.status, round=before + 50)  # type: ignore[method-assign]
        member.copying._offer = lambda *_: []  # type: ignore[method-assign]
    world.run_until(lambda: lagging.member.copying.active, within=60.0)
    assert lagging.standing == before
    if not is_ready:
        world.run_until(lambda: (lagging.me, before + 1) in oracle.submitted, within=30.0)
    assert lagging.member.copying.active
    for member, placed in zip(ahead, truth, strict=True):
        member._placed = placed  # type: ignore[method-assign]
    world.run_until(lambda: not lagging.member.copying.active, within=60.0)
    is_on = lagging.standing > before or lagging.member.phase != "training"
    assert is_on, "nobody would submit again"
    world.run_until(lambda: lagging.standing > before + 1, within=60.0)
    assert not oracle.copies


def test_without_a_donor_a_joiner_waits_and_one_that_comes_later_is_found() -> None:
    world, oracle = build(4, 1, WAN, Shape(joiners=(NAMES[0],)), newcomers=1)
    world.run(30.0)
    assert world.node(NAMES[0]).member.phase == "syncing"
    world.start(NAMES[1])
    world.run_until(lambda: takes_part(oracle, NAMES[0]), within=60.0)
    assert len(oracle.copies) == 1


def test_a_lease_pins_what_is_copied_while_rounds_go_on() -> None:
    """Lines are slow; the donor is further when the last chunk comes, and has kept the version until then."""
    lines = tuple((name, 1 << 18) for name in NAMES[:4])  # four seconds for each payload
    world, oracle = build(5, 4, WAN, Shape(chunks=1, start_members=4, joiners=(LATE,), uplinks=lines), newcomers=1)
    world.run_until(lambda: all(node.standing >= 2 for node in world.nodes()), within=100.0)
    world.start(LATE)
    world.run_until(lambda: bool(oracle.copies), within=300.0)
    ((_, copy),) = oracle.copies
    donor = world.node(copy.donor)
    assert donor.standing > copy.round
    assert donor.store.pinned == (copy.round,)
    world.run(60.0)
    assert not donor.store.pinned, "the lease is over"
    world.run_until(lambda: takes_part(oracle, LATE), within=100.0)
