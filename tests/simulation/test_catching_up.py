"""A member that missed too much, or has a wrong state, gets the state from the others and is in the next rounds."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import TypeVar

import pytest

from shoal.protocol.averaging.shelf import KEPT_ROUNDS, Decision
from shoal.protocol.base.effects import Effect, Event, Send, Timer, Wake
from shoal.protocol.base.ids import Digest, PeerId, content_hash
from shoal.protocol.catchup.download import Download
from shoal.protocol.catchup.transfer import StateReceived
from shoal.protocol.member.lag import FEW, TIMES, Lag
from shoal.protocol.member.member import NEAR, FallsBehind
from shoal.protocol.messages.transfer import GetStateChunk, StateChunk
from tests.simulation.branching import register
from tests.simulation.campaign import build
from tests.simulation.links import LAN, Link
from tests.simulation.oracle import Oracle
from tests.simulation.seeds import seeds
from tests.simulation.swarm import SNAPSHOT, Peer, Shape, peers_named
from tests.simulation.uplink import PAYLOAD
from tests.simulation.versions import root_of
from tests.simulation.world import World

LATE = PeerId("p04")
HELD_UP = 1.0  # virtual seconds beside training that a round takes at most unless somebody holds it up; usual: 0.1
HELD_UP_BY_DEATHS = 3.0  # with one death after the other; a tenth is usual here, too
E = TypeVar("E", bound=Event)


def _swarm(seed: int, chunks: int = 6) -> tuple[World[Peer], Oracle]:
    """Four peers at work, and a fifth that is not there yet."""
    world, oracle = build(seed, 4, LAN, Shape(chunks=chunks, start_members=4), newcomers=1)
    return world, oracle


def _apply_wrongly(node: Peer, oracle: Oracle) -> None:
    """The next round that `node` applies turns into something else in its memory, once; the oracle knows."""
    honest, checks, hit = node._put, oracle.holds, list[Digest]()

    def put(decision: Decision) -> None:
        node._put = honest  # type: ignore[method-assign]
        honest(decision)
        node.state = [content_hash(b"hit" + old) for old in node.state]
        hit.append(root_of(node.state))

    def holds(peer: PeerId, round: int, root: Digest) -> None:
        if root not in hit:
            checks(peer, round, root)

    node._put = put  # type: ignore[method-assign]
    oracle.holds = holds  # type: ignore[method-assign]


def _all_at(world: World[Peer], round: int) -> Callable[[], bool]:
    return lambda: all(node.round >= round for node in world.nodes())


def _received(world: World[Peer], peer: PeerId) -> list[StateReceived]:
    """Filled with the states that `peer` gets from now on."""
    return _told(world.node(peer), StateReceived)


def _told(node: Peer, kind: type[E]) -> list[E]:
    """Filled with the events of a kind that `node` is told from now on."""
    told, on_event = list[E](), node.on_event

    def note(now: float, event: object) -> list[Effect]:
        if isinstance(event, kind):
            told.append(event)
        return on_event(now, event)  # type: ignore[arg-type]

    node.on_event = note  # type: ignore[method-assign]
    return told


@pytest.mark.parametrize("seed", seeds(1, 4))
def test_a_newcomer_gets_the_state_and_is_in_the_next_round(seed: int) -> None:
    world, oracle = _swarm(seed)
    world.run_until(_all_at(world, KEPT_ROUNDS + 4), within=120.0)
    world.start(LATE)
    received = _received(world, LATE)
    world.run_until(lambda: world.node(LATE).round == oracle.newest, within=20.0)
    goal = oracle.newest + 2
    world.run_until(_all_at(world, goal), within=30.0)
    assert len(received) == 1
    assert LATE in oracle.decisions[goal].roster
    assert not world.errors


@pytest.mark.parametrize("seed", seeds(1, 4))
def test_the_results_that_were_made_during_a_download_are_there_at_its_end(seed: int) -> None:
    """The first of them is decided before anybody has fetched of it; else the whole state is downloaded once more."""
    world, oracle = build(seed, 4, LAN, Shape(cycle=(2,) * 20, start_members=4), newcomers=1)
    world.run_until(_all_at(world, KEPT_ROUNDS + 4), within=120.0)
    for donor in peers_named(4):
        world.network.set_detour(LATE, donor, 10 * PAYLOAD / 8.0)  # 8 s for the quarter of each
    world.start(LATE)
    received = _received(world, LATE)
    before = oracle.newest
    world.run_until(lambda: bool(received), within=60.0)
    assert oracle.newest >= before + 3
    assert received[0].base.round <= before
    world.run_until(_all_at(world, oracle.newest + 2), within=60.0)
    assert len(received) == 1
    assert not world.errors


def test_one_gets_there_for_whom_many_small_results_are_kept() -> None:
    """Results of fragments are small beside the state: what carries them takes some fifty rounds for the state."""
    world, oracle = build(3, 4, LAN, Shape(cycle=(4,) * 60, start_members=4), newcomers=1)
    world.run_until(_all_at(world, KEPT_ROUNDS + 4), within=120.0)
    for donor in peers_named(4):
        world.network.set_detour(LATE, donor, 60 * PAYLOAD / 70.0)
    world.start(LATE)
    received = _received(world, LATE)
    before = oracle.newest
    world.run_until(lambda: bool(received), within=300.0)
    assert oracle.newest >= before + 35
    world.run_until(lambda: world.node(LATE).round >= oracle.newest - 1, within=300.0)
    assert len(received) == 1
    assert not world.errors


@pytest.mark.parametrize("seed", range(4))
def test_rounds_may_be_shorter_than_the_way_of_a_question(seed: int) -> None:
    """Whatever a newcomer is told is out of date when it comes, and it gets the state all the same."""
    world, _ = build(seed, 1, Link(delay=1.5, jitter=0.5), newcomers=1)
    world.run_until(_all_at(world, KEPT_ROUNDS + 4), within=120.0)
    late = peers_named(2)[1]
    world.start(late)
    received = _received(world, late)
    world.run_until(lambda: bool(received), within=60.0)
    assert not world.errors


@pytest.mark.parametrize("seed", seeds(1, 4))
def test_one_that_says_nothing_itself_follows_over_a_slow_link(seed: int) -> None:
    """It only asks whoever is ahead, one after the other, and each answer comes when others have been asked since."""
    world, _ = build(seed, 3, Link(delay=0.5, jitter=0.5), newcomers=1)
    world.run_until(_all_at(world, KEPT_ROUNDS + 4), within=300.0)
    late = peers_named(4)[3]
    world.start(late)
    world.node(late)._submit = lambda now: []  # type: ignore[method-assign]
    world.run_until(lambda: world.node(late).round > KEPT_ROUNDS + 4, within=60.0)
    assert not world.errors


@pytest.mark.parametrize("seed", seeds(1, 4))
def test_one_that_lost_its_memory_comes_back(seed: int) -> None:
    world, oracle = _swarm(seed)
    world.run_until(_all_at(world, KEPT_ROUNDS + 2), within=120.0)
    world.restart(peers_named(4)[seed])
    goal = oracle.newest + 4
    world.run_until(_all_at(world, goal), within=60.0)
    assert len(oracle.decisions[goal].roster) == 4
    assert not world.errors


@pytest.mark.parametrize("seed", [1, 2, 5, 8])  # with others it comes to stand where the others do, and is waited for
@pytest.mark.parametrize("has_rule", [True, False])
def test_who_applies_results_more_slowly_than_they_are_made_gets_a_later_state(
    seed: int, has_rule: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would fall back for as long as they are kept: the others do not wait for who does not stand where they are."""
    if not has_rule:
        monkeypatch.setattr(Lag, "is_hopeless", lambda self, now, behind, is_reading: False)
    world, oracle = build(seed, 3, LAN, Shape(chunks=6, start_members=1))
    slow = peers_named(3)[1 + seed % 2]
    pace = world.run_until(_all_at(world, 8), within=120.0) / 8
    world.kill(slow)
    world.run(4.0)
    world.start(slow)
    _apply_late(world.node(slow), 1.5 * pace)
    received, fell = _received(world, slow), _told(world.node(slow), FallsBehind)
    behind = list[int]()
    for _ in range(240):
        count = len(received)
        world.run(1.0)
        behind.append(oracle.newest - world.node(slow).round)
        assert len(received) == count or oracle.newest - received[-1].base.round <= NEAR, "as good as the newest"
    assert len(fell) == (2 if has_rule else 0), "each costs the others a transfer, so it takes longer each time"
    assert (max(behind) <= 2 * TIMES * FEW + 3) == has_rule, "what is made during the download is beside that"
    assert not world.errors


def _apply_late(node: Peer, seconds: float) -> None:
    """What `node` is told to apply it applies so much later."""
    honest, waits = node.fire, [True]

    def fire(now: float, timer: Timer) -> list[Effect]:
        if timer.name != "apply":
            return honest(now, timer)
        waits[0] = not waits[0]
        return honest(now, timer) if waits[0] else [Wake(seconds, timer)]

    node.fire = fire  # type: ignore[method-assign]


@pytest.mark.parametrize("seed", seeds(2, 10))
@pytest.mark.parametrize("away", [4.0, 8.0])
def test_who_was_away_for_some_rounds_gets_their_results_and_no_state(seed: int, away: float) -> None:
    """The others hold the last one in memory, and those before it on their disks."""
    world, oracle = build(seed, 4, LAN, Shape(chunks=6, start_members=1))
    names = peers_named(4)
    goal = 3 * SNAPSHOT + seed % SNAPSHOT
    world.run_until(_all_at(world, goal), within=120.0)
    world.kill(names[seed % 4])
    world.run(away)
    newest, snapshot = oracle.newest, SNAPSHOT * (oracle.newest // SNAPSHOT)
    assert newest >= goal + 2
    world.start(names[seed % 4])
    received, before = _received(world, names[seed % 4]), world.node(names[seed % 4]).round
    world.run_until(_all_at(world, newest + 2), within=60.0)
    assert not received or before < snapshot, "the others have forgotten what was before their last snapshots"
    assert not world.errors


@pytest.mark.parametrize("seed", seeds(4, 24))
def test_a_voter_that_is_back_holds_up_no_round(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it replays what it has missed it takes no means of the present one, and asks for them once it is there."""
    training = 0.3
    monkeypatch.setattr("tests.simulation.swarm.TRAINING", training)
    world, oracle = _voters(seed, 4, chunks=6)
    late = peers_named(4)[seed % 4]
    world.run_until(_all_at(world, oracle.newest + 5), within=60.0)
    _kill_and_start(world, late, away=3.0)
    begun = _last_told(oracle)
    while late not in oracle.decisions[_last_told(oracle)].roster:
        assert _last_told(oracle) < begun + 120, "it is not back in a minute"
        world.run_until(_is_beyond(oracle, _last_told(oracle)), within=training + HELD_UP)
    assert not world.errors


@pytest.mark.parametrize("seed", seeds(4, 24))
def test_a_voter_that_is_back_within_a_round_holds_up_none_after_it(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others have sent means to the process that is gone, or none as they took it for dead: it asks at once."""
    training = 2.0
    monkeypatch.setattr("tests.simulation.swarm.TRAINING", training)
    world, oracle = _voters(seed, 4, chunks=6)
    world.run_until(_all_at(world, 6), within=60.0)
    world.run(0.3 + 0.1 * (seed % 16))
    _kill_and_start(world, peers_named(4)[seed % 4], away=0.5)
    world.run_until(_is_beyond(oracle, _last_told(oracle)), within=10.0)
    for _ in range(3):
        world.run_until(_is_beyond(oracle, _last_told(oracle)), within=training + HELD_UP)
    assert not world.errors


@pytest.mark.parametrize("seed", seeds(2, 64))
def test_who_is_killed_and_started_again_and_again_holds_up_no_round_for_long(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever proposes may be new as well, and not know how long others usually take."""
    rng, names = random.Random(f"churn {seed}"), peers_named(5)
    training = rng.choice((0.5, 2.0))
    monkeypatch.setattr("tests.simulation.swarm.TRAINING", training)
    world, oracle = _voters(seed, 5, chunks=10)
    decided_at = {oracle.newest: world.now}

    def watch(_: PeerId) -> None:
        decided_at.setdefault(oracle.newest, world.now)

    world.watchers.append(watch)
    for _ in range(12):
        world.run(rng.uniform(2.0, 12.0))
        _kill_and_start(world, rng.choice(names), away=rng.uniform(1.0, 4.0))
    gaps = [after - before for before, after in itertools.pairwise(decided_at.values())]
    assert max(gaps) < training + HELD_UP_BY_DEATHS
    assert not world.errors


def _voters(seed: int, peers: int, chunks: int) -> tuple[World[Peer], Oracle]:
    """All of them vote."""
    world, oracle = build(seed, peers, LAN, Shape(chunks=chunks, start_members=peers))
    world.run_until(lambda: len(register(world).voters) == peers, within=200.0)
    return world, oracle


def _kill_and_start(world: World[Peer], peer: PeerId, away: float) -> None:
    world.kill(peer)
    world.run(away)
    world.start(peer)


def _last_told(oracle: Oracle) -> int:
    """The last decided round of which a member was told."""
    return max(oracle.decisions)


def _is_beyond(oracle: Oracle, round: int) -> Callable[[], bool]:
    return lambda: _last_told(oracle) > round


@pytest.mark.parametrize("seed", seeds(1, 4))
def test_one_that_is_killed_at_half_fetches_the_other_half(seed: int) -> None:
    """Rounds go on meanwhile, so the version of its first try is not the newest any more."""
    world, oracle = _swarm(seed, chunks=40)
    world.run_until(_all_at(world, KEPT_ROUNDS + 4), within=120.0)
    world.start(LATE)

    def kill_at_half(peer: PeerId) -> None:
        if world.is_alive(LATE) and world.node(LATE).member.progress()[0] >= 20:
            world.kill(LATE)

    world.watchers.append(kill_at_half)
    world.run_until(lambda: not world.is_alive(LATE), within=20.0)
    world.watchers.remove(kill_at_half)
    before = oracle.newest
    world.run_until(lambda: oracle.newest >= before + 2, within=30.0)
    world.restart(LATE)
    asked = _chunks_asked(world, LATE)
    world.run_until(lambda: world.node(LATE).round >= before, within=20.0)
    first = asked[0].round
    assert first < before
    assert sum(each.round == first for each in asked) <= 22
    world.run_until(_all_at(world, oracle.newest + 2), within=30.0)
    assert not world.errors


def _chunks_asked(world: World[Peer], peer: PeerId) -> list[GetStateChunk]:
    """Filled with what `peer` asks for from now on."""
    asked: list[GetStateChunk] = []
    member = world.node(peer).member
    ask = member.transfer._ask_chunks

    def note(now: float, download: Download) -> list[Effect]:
        effects = ask(now, download)
        asked.extend(each.message for each in effects if isinstance(each, Send))  # type: ignore[misc]
        return effects

    member.transfer._ask_chunks = note  # type: ignore[method-assign]
    return asked


@pytest.mark.parametrize("seed", seeds(1, 4))
def test_a_donor_may_die_in_the_middle_and_another_may_lie(seed: int) -> None:
    world, oracle = _swarm(seed, chunks=40)
    world.run_until(_all_at(world, KEPT_ROUNDS + 3), within=120.0)
    world.start(LATE)
    donors: list[PeerId] = []

    def watch(peer: PeerId) -> None:
        download = world.node(LATE).member.transfer._download
        if download is None or len(download.donors) < 2 or donors:
            return
        donors.extend(download.donors)
        _lie(world.node(donors[0]))
        world.kill(donors[1])

    world.watchers.append(watch)
    world.run_until(lambda: world.node(LATE).round >= KEPT_ROUNDS + 3, within=60.0)
    assert donors
    assert donors[0] in [blamed.peer for blamed in world.node(LATE).blamed]
    world.run_until(_all_at(world, oracle.newest + 2), within=60.0)


def _lie(node: Peer) -> None:
    """From now on every chunk of the state that `node` serves is wrong."""
    receive = node.member.transfer.receive

    def lying(now: float, sender: PeerId, message: object) -> list[Effect]:
        effects = receive(now, sender, message)  # type: ignore[arg-type]
        return [_spoilt(effect) for effect in effects]

    node.member.transfer.receive = lying  # type: ignore[method-assign]


def _spoilt(effect: Effect) -> Effect:
    if isinstance(effect, Send) and isinstance(effect.message, StateChunk):
        chunk = effect.message
        return Send(effect.to, StateChunk(chunk.part, chunk.round, chunk.index, b"a lie"))
    return effect


@pytest.mark.parametrize("diverged", peers_named(4))
def test_a_member_whose_state_differs_notices_and_is_put_right(diverged: PeerId) -> None:
    """Its memory was hit: it applied the same round, and holds other bytes. Whether it leads or follows, it must not
    contribute from there, nor keep the others from going on."""
    world, oracle = _swarm(1)
    world.run_until(_all_at(world, 2), within=60.0)
    _apply_wrongly(world.node(diverged), oracle)
    received = _received(world, diverged)
    world.run_until(lambda: bool(received), within=60.0)
    goal = oracle.newest + 3
    world.run_until(_all_at(world, goal), within=60.0)
    assert len(oracle.decisions[goal].roster) == 4
    assert not world.errors
