"""The rules of the rounds, each taken out by a patch; test_mutations.py says which promise that breaks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from shoal.protocol.averaging import steering
from shoal.protocol.averaging.context import Outcome
from shoal.protocol.averaging.events import Committed, Reviewed
from shoal.protocol.averaging.exchange import Exchange
from shoal.protocol.averaging.fetching import Fetching
from shoal.protocol.averaging.owned import OwnedChunk
from shoal.protocol.averaging.round import Round
from shoal.protocol.averaging.rounds import Rounds
from shoal.protocol.averaging.shelf import Shelf
from shoal.protocol.averaging.steering import Steering
from shoal.protocol.base.effects import Effect, Persist, Tell
from shoal.protocol.base.errors import PayloadError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.log import register as registering
from shoal.protocol.log.core import Core
from shoal.protocol.log.keeper import Keeper
from shoal.protocol.member.member import Member
from shoal.protocol.messages import averaging as wire
from shoal.protocol.messages.log import Register, Void

Patch = Callable[[pytest.MonkeyPatch], None]


# -- what is averaged ---------------------------------------------------------------------------------------------


def count_a_contributor_twice(patch: pytest.MonkeyPatch) -> None:
    """A contribution that comes again is added again."""
    sound, sound_add = OwnedChunk.fold, OwnedChunk.add
    again: list[tuple[OwnedChunk, int, bytes]] = []

    def fold(self: OwnedChunk, *asked: Any) -> object:
        done = sound(self, *asked)
        while again and again[-1][0] is self:
            _, weight, payload = again.pop()
            self._sum.add(weight, payload)
        return done

    def add(self: OwnedChunk, peer: PeerId, weight: int, payload: bytes) -> list[PayloadError]:
        if self._held.get(peer, ()) is None and peer in self.counted:
            again.append((self, weight, payload))
            return []
        return sound_add(self, peer, weight, payload)

    patch.setattr(OwnedChunk, "fold", fold)
    patch.setattr(OwnedChunk, "add", add)
    patch.setattr(Exchange, "receive_contribution", _with_repeats(Exchange.receive_contribution))


def _with_repeats(sound: Callable[..., list[Effect]]) -> Callable[..., list[Effect]]:
    def receive(self: Exchange, sender: PeerId, message: wire.Contribution) -> list[Effect]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(OwnedChunk, "lacks", lambda self, peer, weight: True)
            return sound(self, sender, message)

    return receive


def count_by_any_weight(patch: pytest.MonkeyPatch) -> None:
    """A contribution counts by the weight that it names, whatever its sender has offered."""
    sound = Exchange.receive_contribution

    def receive_contribution(self: Exchange, sender: PeerId, message: wire.Contribution) -> list[Effect]:
        self._offers[sender] = message.weight
        return sound(self, sender, message)

    patch.setattr(Exchange, "receive_contribution", receive_contribution)


def weigh_all_alike(patch: pytest.MonkeyPatch) -> None:
    """A mean takes each contribution for one token."""
    sound = OwnedChunk._count

    def count(self: OwnedChunk, peer: PeerId, held: tuple[int, Callable[[], bytes]]) -> list[PayloadError]:
        return sound(self, peer, (1, held[1]))

    patch.setattr(OwnedChunk, "_count", count)


def take_a_mean_of_anybody(patch: pytest.MonkeyPatch) -> None:
    """A mean need not be signed by the owner of its chunk."""
    patch.setattr(Exchange, "_check_made", lambda *_: None)


def take_a_mean_without_its_bytes(patch: pytest.MonkeyPatch) -> None:
    """Bytes need not have the hash that they are said to have."""

    def was_asked(self: Shelf, message: wire.Mean, sender: PeerId) -> bool:
        return sender in self._asked.get((message.chunk, message.made.hash), ())

    patch.setattr(Shelf, "was_asked", was_asked)


def count_the_dead(patch: pytest.MonkeyPatch) -> None:
    """Whoever is in some chunk counts for the run's tokens, not only who is in all of them."""

    def any_of(masks: Iterable[bytes]) -> bytes:
        found = 0
        for mask in masks:
            found, size = found | int.from_bytes(mask, "little"), len(mask)
        return found.to_bytes(size, "little")

    patch.setattr(steering, "common", any_of)


def drop_the_residual(patch: pytest.MonkeyPatch) -> None:
    """A member of the roster takes itself to be counted in every chunk."""
    sound = Round._conclude

    def conclude(self: Round, now: float) -> list[Effect]:
        return [_counted_everywhere(effect) for effect in sound(self, now)]

    patch.setattr(Round, "_conclude", conclude)


def _counted_everywhere(effect: Effect) -> Effect:
    match effect:
        case Tell(Committed(decision, counted)) if any(counted):
            return Tell(Committed(decision, (True,) * len(counted)))
    return effect


# -- on which state -----------------------------------------------------------------------------------------------


def take_offers_of_another_state(patch: pytest.MonkeyPatch) -> None:
    """A member of another state is waited for, though what it brings is refused."""
    sound = Round._receive_offer

    def receive_offer(self: Round, now: float, sender: PeerId, offer: wire.Offer) -> list[Effect]:
        base, self.base = self.base, replace(self.base, root=offer.base_root)
        try:
            return sound(self, now, sender, offer)
        finally:
            self.base = base

    patch.setattr(Round, "_receive_offer", receive_offer)


def add_what_was_trained_elsewhere(patch: pytest.MonkeyPatch) -> None:
    """An owner adds a contribution to another state, and takes it for an offer."""
    sound = Exchange.receive_contribution

    def receive_contribution(self: Exchange, sender: PeerId, message: wire.Contribution) -> list[Effect]:
        self._offers.setdefault(sender, message.weight)
        return sound(self, sender, replace(message, base_root=self._base_root))

    patch.setattr(Exchange, "receive_contribution", receive_contribution)


def vote_for_a_result_on_another_state(patch: pytest.MonkeyPatch) -> None:
    """A voter does not look on which state a result was made."""
    sound = Round._answer_review

    def answer(self: Round, now: float) -> list[Effect]:
        if self._review is None:
            return sound(self, now)
        result = self._review[1]
        base, self.base = self.base, replace(self.base, root=result.base_root)
        try:
            return sound(self, now)
        finally:
            self.base = base

    patch.setattr(Round, "_answer_review", answer)


def apply_to_another_state(patch: pytest.MonkeyPatch) -> None:
    """A member applies what was decided to whatever state it has."""

    def decided(self: Round, now: float, outcome: Outcome) -> list[Effect]:
        self._outcome, self._decided_at = outcome, now
        return self._do(now, [])

    patch.setattr(Round, "decided", decided)
    patch.setattr(Rounds, "_if_far_behind", lambda self: [])


# -- what is voted for --------------------------------------------------------------------------------------------


def vote_without_the_bytes(patch: pytest.MonkeyPatch) -> None:
    """A voter votes for a result whose means it does not hold."""

    def answer(self: Round, now: float) -> list[Effect]:
        if self._review is None:
            return []
        entry, _, _ = self._review
        self._review = None
        return [Tell(Reviewed(entry, True))]

    patch.setattr(Round, "_answer_review", answer)


def vote_before_the_last_is_kept(patch: pytest.MonkeyPatch) -> None:
    """A second result is proposed and voted for while the means of the one before are not on the disk."""
    sound = Rounds._digest

    def digest(self: Rounds, effects: list[Effect]) -> list[Effect]:
        done = sound(self, effects)
        self.shelf.unkept = None
        return done

    patch.setattr(Rounds, "_digest", digest)


def propose_a_table_that_is_not_written(patch: pytest.MonkeyPatch) -> None:
    """A proposer does not write down which means its result has."""
    sound = Steering._propose

    def propose(self: Steering) -> list[Effect]:
        return [effect for effect in sound(self) if not isinstance(effect, Persist)]

    patch.setattr(Steering, "_propose", propose)


def send_means_that_are_not_written(patch: pytest.MonkeyPatch) -> None:
    """An owner does not write down the means that it has made."""
    sound = Exchange._broadcast

    def broadcast(self: Exchange, chunk: int, made: wire.Made) -> list[Effect]:
        return [effect for effect in sound(self, chunk, made) if not isinstance(effect, Persist)]

    patch.setattr(Exchange, "_broadcast", broadcast)


def forget_the_means_of_before(patch: pytest.MonkeyPatch) -> None:
    """A member that starts again does not look for the means that it had."""
    patch.setattr(Rounds, "recall_means", lambda self, records: None)


def forget_the_last_result(patch: pytest.MonkeyPatch) -> None:
    """A member that starts again has nothing left for those who lack the result that it stands on."""
    sound = Member.__init__

    def init(self: Member, *args: object, **settings: object) -> None:
        sound(self, *args, **settings)  # type: ignore[arg-type]
        self.rounds.shelf._decisions.clear()

    patch.setattr(Member, "__init__", init)


def never_undo(patch: pytest.MonkeyPatch) -> None:
    """Nobody says that the bytes of a result are lost."""
    patch.setattr(Keeper, "_say_what_is_lost", lambda self: [])


def undo_what_is_only_late(patch: pytest.MonkeyPatch) -> None:
    """What is not here at once counts as lost."""
    patch.setattr(Round, "_is_lost", lambda self, now, since: True)


def count_no_lacks(patch: pytest.MonkeyPatch) -> None:
    """One voter that lacks the bytes of a result undoes it, though others hold them."""
    sound = Keeper._voids

    def voids(self: Keeper) -> list[Void]:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Keeper, "is_quorum", lambda self, peers: True)
            return sound(self)

    def void(step: Any, body: Void) -> Register:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(registering._Step, "_is_quorum", lambda self, peers: True)
            return registering._Step.void(step, body)

    patch.setattr(Keeper, "_voids", voids)
    patch.setitem(registering._APPLY, Void, void)


# -- who owns what ------------------------------------------------------------------------------------------------


def accept_a_stale_epoch(patch: pytest.MonkeyPatch) -> None:
    """The last move of a chunk that arrives counts, not the highest."""

    def move(self: Exchange, epochs: Iterable[tuple[int, int]]) -> list[Effect]:
        effects: list[Effect] = []
        for chunk, epoch in epochs:
            owner = self._owners.at(chunk, epoch) if self._owners is not None else None
            if owner is not None and epoch != self.epochs[chunk]:
                effects += self._move(chunk, epoch, owner)
        return effects

    patch.setattr(Exchange, "move", move)


def forget_to_reassign(patch: pytest.MonkeyPatch) -> None:
    """A dead owner's chunks stay with it."""
    patch.setattr(Exchange, "moves", lambda self, lost, fit: [])


def send_again_unasked(patch: pytest.MonkeyPatch) -> None:
    """Whoever hears of a move sends all its contributions again."""
    sound = Exchange._move

    def move(self: Exchange, chunk: int, epoch: int, owner: PeerId) -> list[Effect]:
        return [*sound(self, chunk, epoch, owner), *self._send_contributions()]

    patch.setattr(Exchange, "_move", move)


# -- who is waited for --------------------------------------------------------------------------------------------


def wait_for_the_dead(patch: pytest.MonkeyPatch) -> None:
    """A round does not learn who has died."""
    patch.setattr(Rounds, "peer_down", lambda self, now, peer: [])


def wait_for_all_who_train(patch: pytest.MonkeyPatch) -> None:
    """Nobody is gone on without who lives and does not hand in."""
    patch.setattr(Steering, "_leave_out", lambda self, now: [])


def never_call(patch: pytest.MonkeyPatch) -> None:
    """Nobody is asked to hand in what it has."""
    patch.setattr(Steering, "_call", lambda self, now: [])


def seat_nobody_later(patch: pytest.MonkeyPatch) -> None:
    """Whoever was not in the last round is in no later one."""

    def next_seats(self: Steering) -> object:
        here = [peer for peer in self.expected() if self._is_seated(peer)]
        return self._shared(here or [self._us.me], self.round + 1)

    patch.setattr(Steering, "_next_seats", next_seats)
    patch.setattr(Steering, "_seat_more", lambda self: [])


def never_remind(patch: pytest.MonkeyPatch) -> None:
    """Lost bytes are not asked for."""
    patch.setattr(Round, "_remind", lambda self, now: [])


def say_nothing_again(patch: pytest.MonkeyPatch) -> None:
    """What is lost of a proposal, its votes, or the statements of a view is not sent a second time in that view."""
    patch.setattr(Core, "repeat", lambda self: [])


# -- who is behind ------------------------------------------------------------------------------------------------


def stay_behind(patch: pytest.MonkeyPatch) -> None:
    """Whoever is far behind does not ask for a later state."""
    patch.setattr(Rounds, "_if_far_behind", lambda self: [])


def fetch_nothing(patch: pytest.MonkeyPatch) -> None:
    """Means that are missing are not asked for by their hashes."""
    patch.setattr(Fetching, "ask", lambda self, now, means, chunks, holders: [])


def answer_nobody_late(patch: pytest.MonkeyPatch) -> None:
    """Whoever is still in a round that is over here gets no answer."""
    patch.setattr(Rounds, "_answer_late", lambda self, now, sender, message: [])
