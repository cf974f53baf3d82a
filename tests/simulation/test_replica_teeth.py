"""The simulator has teeth: each rule that is taken out is missed, and by the promise that it keeps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from shoal.protocol.effects import Effect, Send, Tell
from shoal.protocol.ids import PeerId
from shoal.protocol.messages.rounds import Contribution
from shoal.protocol.pair import PairExchange
from shoal.protocol.replicas import rounds
from shoal.protocol.replicas.rounds import REPLICA_MESSAGES, ReplicaRounds
from tests.simulation.links import WAN
from tests.simulation.promises import Violation
from tests.simulation.replicas import Replica, Shape, build
from tests.simulation.swarm import peers_named
from tests.simulation.test_replica_faults import run_seed
from tests.simulation.test_replicas import all_at
from tests.simulation.world import Step

Patch = Callable[[pytest.MonkeyPatch], None]


def stale_rounds_count(patch: pytest.MonkeyPatch) -> None:
    """A chunk counts in whatever round it arrives."""
    sound = ReplicaRounds.receive

    def receive(self: ReplicaRounds, now: float, sender: PeerId, message: REPLICA_MESSAGES) -> list[Effect]:
        exchange = self._round._exchange if self._round is not None else None
        if isinstance(message, Contribution) and exchange is not None and exchange.pairing.partner == sender:
            pairing = exchange.pairing
            message = Contribution(pairing.round, 0, pairing.number, message.chunk, message.epoch, message.payload)
        return sound(self, now, sender, message)

    patch.setattr(rounds.ReplicaRounds, "receive", receive)


def half_a_vector_counts(patch: pytest.MonkeyPatch) -> None:
    """Of a partner that is lost what came counts."""

    def lose(self: PairExchange) -> list[Effect]:
        if self.is_over:
            return []
        self._payloads |= {index: b"" for index in range(self.pairing.chunks) if index not in self._payloads}
        return self._finish()

    patch.setattr(PairExchange, "lose", lose)


def it_is_told_again(patch: pytest.MonkeyPatch) -> None:
    """Whoever has told of an exchange tells of it once more when the partner's word comes again."""
    sound = PairExchange._finish

    def finish(self: PairExchange) -> list[Effect]:
        effects = sound(self)
        return [*effects, *(effect for effect in effects if isinstance(effect, Tell))]

    patch.setattr(PairExchange, "_finish", finish)


def replayed(sender: PeerId, message: Contribution) -> Step[Replica]:
    """What the network does when it brings a message once more."""
    return lambda node, now: node.receive(now, sender, message)


def late_mail() -> None:
    """Two, of which one is sent all chunks of the first round once more in the middle of each later exchange."""
    names = peers_named(2)
    world, _ = build(1, 2, WAN)
    old: list[Contribution] = []

    def tap(peer: PeerId, effect: Effect) -> None:
        message = effect.filled() if isinstance(effect, Send) else None
        if peer == names[1] and isinstance(message, Contribution) and message.round == 1:
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


def misfortune() -> None:
    """Deaths in the middle of exchanges, among others."""
    for seed in range(12):
        run_seed(seed)


BROKEN = [
    (stale_rounds_count, late_mail, "Whole or nothing"),
    (half_a_vector_counts, misfortune, "Whole or nothing"),
    (it_is_told_again, late_mail, "At most once"),
]


@pytest.mark.parametrize(("broken", "scene", "promise"), [pytest.param(*each, id=each[0].__name__) for each in BROKEN])
def test_a_rule_that_is_taken_out_is_missed(
    broken: Patch, scene: Callable[[], None], promise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    with pytest.raises(Violation) as caught:
        scene()
    assert caught.value.promise == promise


def test_the_sound_rules_pass_where_the_broken_ones_are_caught() -> None:
    late_mail()


def test_one_sided_applications_are_counted() -> None:
    """Without the word that all has arrived, who has a fast partner goes on and leaves it with nothing."""
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
