"""Each rule of replicas is needed: if it is taken out, the simulator names the promise that breaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import msgpack
import pytest

from shoal.protocol.base.effects import Effect, Send, Tell
from shoal.protocol.base.ids import PeerId
from shoal.protocol.catchup.donor import Donor
from shoal.protocol.log.keeper import Keeper
from shoal.protocol.messages.replicas import Chunk
from shoal.protocol.replicas import round as one_round
from shoal.protocol.replicas import rounds
from shoal.protocol.replicas.context import Counted
from shoal.protocol.replicas.member import ReplicaMember
from shoal.protocol.replicas.pair import PAIR_MESSAGES, PairExchange
from shoal.protocol.replicas.rounds import REPLICA_MESSAGES, ReplicaRounds
from tests.simulation.links import WAN
from tests.simulation.promises import Violation
from tests.simulation.replica_endings import PROMISE, both_parts_end, slow_lines
from tests.simulation.replicas import Replica, Shape, build
from tests.simulation.swarm import peers_named
from tests.simulation.test_replica_faults import run_seed
from tests.simulation.test_replicas import all_at
from tests.simulation.uplink import PAYLOAD
from tests.simulation.versions import Versions
from tests.simulation.world import Step

Patch = Callable[[pytest.MonkeyPatch], None]


def stale_rounds_count(patch: pytest.MonkeyPatch) -> None:
    """A chunk counts in any round in which it arrives."""
    sound = ReplicaRounds.receive

    def receive(self: ReplicaRounds, now: float, sender: PeerId, message: REPLICA_MESSAGES) -> list[Effect]:
        pairing = self.round.pairing if self.round is not None else None
        if isinstance(message, Chunk) and pairing is not None and pairing.partner == sender:
            message = Chunk(pairing.round, pairing.number, message.chunk, message.payload)
        return sound(self, now, sender, message)

    patch.setattr(rounds.ReplicaRounds, "receive", receive)


def half_a_vector_counts(patch: pytest.MonkeyPatch) -> None:
    """The chunks of a lost partner count, though some are missing."""

    def lose(self: PairExchange) -> list[Effect]:
        if self.is_over:
            return []
        self._payloads |= {index: b"" for index in range(self.pairing.chunks) if index not in self._payloads}
        return self._finish()

    patch.setattr(PairExchange, "lose", lose)


def it_is_told_again(patch: pytest.MonkeyPatch) -> None:
    """An exchange is reported again when the partner's word comes again."""
    sound = PairExchange._finish

    def finish(self: PairExchange) -> list[Effect]:
        effects = sound(self)
        return [*effects, *(effect for effect in effects if isinstance(effect, Tell))]

    patch.setattr(PairExchange, "_finish", finish)


def numbers_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    """A chunk counts in any pairing of its round."""
    sound = PairExchange.receive

    def receive(self: PairExchange, now: float, sender: PeerId, message: PAIR_MESSAGES) -> list[Effect]:
        if isinstance(message, Chunk) and message.round == self.pairing.round:
            message = replace(message, number=self.pairing.number)
        return sound(self, now, sender, message)

    patch.setattr(PairExchange, "receive", receive)


def numbers_are_not_drawn(patch: pytest.MonkeyPatch) -> None:
    """All pairings have the same number, also after a restart."""
    patch.setattr(one_round, "pairing_number", lambda one, other: 0)


def leaps_have_no_bound(patch: pytest.MonkeyPatch) -> None:
    """A member that is far behind goes on with its own replica."""
    open, catch_up = ReplicaRounds.open, ReplicaMember._catch_up

    def open_far(self: ReplicaRounds, now: float, base: int, *, may_leap: bool = False) -> list[Effect]:
        return open(self, now, base, may_leap=True)

    def copy_if_none(self: ReplicaMember, now: float) -> list[Effect]:
        return catch_up(self, now) if self._base is None else []

    patch.setattr(ReplicaRounds, "open", open_far)
    patch.setattr(ReplicaMember, "_catch_up", copy_if_none)


def leaps_go_further_than_most(patch: pytest.MonkeyPatch) -> None:
    """A member that is behind leaps ahead of the others."""
    sound = ReplicaRounds.lead

    def lead(self: ReplicaRounds) -> int:
        found = sound(self)
        return found + 3 if found >= 2 else found

    patch.setattr(ReplicaRounds, "lead", lead)


def leases_pin_nothing(patch: pytest.MonkeyPatch) -> None:
    """The donor goes on, and the version that is copied is gone."""
    patch.setattr(Versions, "pin", lambda self, round: True)


def leases_never_end(patch: pytest.MonkeyPatch) -> None:
    """A version that was copied once is kept for ever."""
    patch.setattr(Donor, "expire", lambda self, now: None)


def replayed(sender: PeerId, message: Chunk) -> Step[Replica]:
    """The network delivers a message once more."""
    return lambda node, now: node.receive(now, sender, message)


def late_mail() -> None:
    """Two, of which one is sent all chunks of the first round once more in the middle of each later exchange."""
    names = peers_named(2)
    world, _ = build(1, 2, WAN)
    old: list[Chunk] = []

    def tap(peer: PeerId, effect: Effect) -> None:
        message = world.filled(peer, effect) if isinstance(effect, Send) else None
        if peer == names[1] and isinstance(message, Chunk) and message.round == 1:
            old.append(message)

    def watch(peer: PeerId) -> None:
        node = world.node(names[0])
        if peer != names[0] or node.member.phase != "exchanging" or node.standing < 1:
            return
        fresh, old[:] = list(old), []
        for message in fresh:
            world.command(names[0], replayed(names[1], message))

    world.taps.append(tap)
    world.watchers.append(watch)
    world.run_until(lambda: all(node.standing >= 6 for node in world.nodes()), within=100.0)
    assert not old, "they came"


def mail_of_another_life() -> None:
    """Two; into each exchange comes a chunk that the partner made for the same round in another life."""
    names = peers_named(2)
    world, _ = build(1, 2, WAN)
    rounds = set()

    def watch(peer: PeerId) -> None:
        node = world.node(names[0])
        open_round = node.member.exchanges.round
        exchange = open_round.exchange if open_round is not None else None
        if exchange is None or exchange.is_over or exchange.has_all or exchange.pairing.round in rounds:
            return
        missing, round = exchange.missing[0], exchange.pairing.round
        rounds.add(round)
        payload = bytes(msgpack.packb([names[1], 7, round, missing, 0.5]))
        world.command(names[0], replayed(names[1], Chunk(round, 0, missing, payload)))

    world.watchers.append(watch)
    world.run_until(lambda: all(node.standing >= 6 for node in world.nodes()), within=100.0)
    assert len(rounds) >= 6, "they came"


def absence(pause: float) -> None:
    """One of four members is away for `pause` seconds; soon afterwards it must be among the others again."""
    names = peers_named(4)
    world, _ = build(2, 4, WAN, Shape(start_members=4))
    world.run_until(lambda: all_at(world, 4), within=60.0)
    world.pause(names[2])
    world.run(pause)
    world.resume(names[2])
    world.run(20.0)
    newest = max(node.standing for node in world.nodes())
    if world.node(names[2]).standing < newest - 2:
        raise Violation("Nobody is stuck", f"one that was away for {pause} s is not back after 20 s")


def slow_copy() -> None:
    """A newcomer copies over a relay so slow that its donor is rounds further before the last chunk is asked for."""
    names = peers_named(5)
    world, oracle = build(5, 4, WAN, Shape(start_members=4, joiners=(names[4],)), newcomers=1)
    for name in names[:4]:
        world.network.set_detour(name, names[4], PAYLOAD / 6.0)
    world.run_until(lambda: all_at(world, 2), within=100.0)
    world.start(names[4])
    world.run(100.0)
    if not oracle.copies:
        raise Violation("Nobody is stuck", "a newcomer has no replica after 100 s")
    world.run(60.0)
    if any(world.node(name).store.pinned for name in names[:4]):
        raise Violation("Bounded", "a version is kept for a newcomer that has long had it")


def many_faults() -> None:
    """Several kinds of faults, among them deaths in the middle of exchanges."""
    for seed in range(12):
        run_seed(seed)


def whoever_is_there_counts(patch: pytest.MonkeyPatch) -> None:
    """Partners are drawn from all who are alive."""
    patch.setattr(Counted, "counts", lambda self, peer: True)


def stuck_log() -> None:
    """Two of four voters are gone for good, so a newcomer cannot be admitted; and yet it is there, and has a copy."""
    names = peers_named(5)
    world, _ = build(3, 4, WAN, Shape(start_members=4, joiners=(names[4],)), newcomers=1)
    world.run_until(lambda: all(len(node.member.log.register.voters) == 4 for node in world.nodes()), within=100.0)
    for name in names[:2]:
        world.kill(name)
    world.start(names[4])
    world.run(40.0)
    if world.node(names[4]).standing < 0:
        raise Violation("Nobody is stuck", "a newcomer has no replica after 40 s")


def another_result_is_not_taken(patch: pytest.MonkeyPatch) -> None:
    """Who leaves its branch for another keeps the result that it has."""
    patch.setattr(ReplicaMember, "_begin_last_anew", lambda self, now: [])


def nobody_asks_after_the_end(patch: pytest.MonkeyPatch) -> None:
    """Parts that have ended do not look for each other."""
    patch.setattr(Keeper, "_ask_who_is_no_member", lambda self: [])


def an_ended_branch_is_kept(patch: pytest.MonkeyPatch) -> None:
    """What has ended yields by an entry only, which does not fit after the end."""
    patch.setattr(Keeper, "_switch", lambda self, shown: [])


def nobody_is_waited_for_in_the_end(patch: pytest.MonkeyPatch) -> None:
    """The last round begins without those who are behind."""
    patch.setattr(ReplicaMember, "_behind", property(lambda self: []))


BROKEN = [
    (another_result_is_not_taken, partial(both_parts_end, 0), PROMISE),
    (nobody_asks_after_the_end, partial(both_parts_end, 0), PROMISE),
    (an_ended_branch_is_kept, partial(both_parts_end, 0), PROMISE),
    (nobody_is_waited_for_in_the_end, partial(slow_lines, 1), PROMISE),
    (whoever_is_there_counts, stuck_log, "Only members"),
    (stale_rounds_count, late_mail, "Whole or nothing"),
    (half_a_vector_counts, many_faults, "Whole or nothing"),
    (it_is_told_again, late_mail, "At most once"),
    (numbers_are_not_compared, mail_of_another_life, "Whole or nothing"),
    (numbers_are_not_drawn, mail_of_another_life, "Whole or nothing"),
    (leaps_have_no_bound, partial(absence, 60.0), "Fencing"),
    (leaps_go_further_than_most, partial(absence, 10.0), "Fencing"),
    (leases_pin_nothing, slow_copy, "Nobody is stuck"),
    (leases_never_end, slow_copy, "Bounded"),
]


@pytest.mark.parametrize(("broken", "scene", "promise"), [pytest.param(*each, id=each[0].__name__) for each in BROKEN])
def test_a_rule_that_is_taken_out_is_missed(
    broken: Patch, scene: Callable[[], None], promise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    with pytest.raises(Violation) as caught:
        scene()
    assert caught.value.promise == promise


@pytest.mark.parametrize(
    "scene", [late_mail, mail_of_another_life, partial(absence, 60.0), partial(absence, 10.0), slow_copy, stuck_log]
)
def test_the_sound_rules_pass_where_the_broken_ones_are_caught(scene: Callable[[], None]) -> None:
    scene()


def test_one_sided_applications_are_counted() -> None:
    """Without the word that all has arrived, a member with a slow uplink goes on and its partner gets nothing."""
    counts = []
    for is_sound in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            if not is_sound:
                patch.setattr(PairExchange, "_finish_if_done", lambda self, now: self._finish() if self.has_all else [])
            names = peers_named(2)
            slow = Shape(start_members=2, uplinks=((names[1], 1 << 19),))
            world, oracle = build(1, 2, shape=slow)
            world.run_until(partial(all_at, world, 4), within=400.0)
            counts.append(oracle.count_one_sided())
    sound, broken = counts
    assert sound == 0
    assert broken > 0
