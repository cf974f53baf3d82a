"""Butterfly all-reduce of one roster: every member's chunks go to their owners, the owners' means to everyone.

Rules:
- A chunk has one owner at a time. Only a leader moves it, by Reassign, and the epoch grows with each move. Bytes of
  a lower epoch count only if their sender, or their receiver, is still the owner; those of a higher one wait for
  their Reassign.
- An owner that loses a contributor finishes with those it has. A new owner takes over what the old one had
  already handed out (Have, Fetch) rather than compute it again.
- Results are provisional: a round agrees on hashes, by PREPARE.
- Nothing is resent unless it is asked for (Want), and it is asked for only when its sender has gone silent.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from shoal.protocol.base.effects import Effect, Event, Send, Tell
from shoal.protocol.base.errors import PayloadError, RemoteError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import Payload
from shoal.protocol.messages.rounds import Assignment, Ballot, Contribution, Final, Have, Reassign, Want
from shoal.protocol.rounds.agreement.certificate import mask_size
from shoal.protocol.rounds.agreement.roster import Plan
from shoal.protocol.rounds.allreduce.lacking import Lacking
from shoal.protocol.rounds.allreduce.owned import OwnedChunk, misfit
from shoal.protocol.rounds.allreduce.ownership import Ownership
from shoal.protocol.rounds.allreduce.reducer import Contribute, Reducer
from shoal.protocol.rounds.allreduce.results import Offers, Results
from shoal.protocol.rounds.allreduce.shelf import Shelf
from shoal.protocol.rounds.allreduce.wanted import Wanted


@dataclass(frozen=True, slots=True)
class Blamed(Event):
    """A peer sent something bad and was left out, or ignored."""

    peer: PeerId
    reason: str


class AllReduce:
    """One member's side of one reduction: contributor, perhaps owner, receiver."""

    def __init__(
        self,
        me: PeerId,
        plan: Plan,
        reducer: Reducer,
        contribution: Contribute | None,
        shelf: Shelf,
        wanted: Wanted,
    ) -> None:
        self._me = me
        self._wanted = wanted
        self._plan = plan
        self._reducer = reducer
        self._shelf = shelf
        contributes = me in plan.contributors() and contribution is not None
        self._contribution = contribution if contributes else None
        self._owners = Ownership(plan)
        self._owned = {chunk: OwnedChunk(plan, chunk, reducer) for chunk in self._owners.chunks(me)}
        self._early: dict[int, dict[tuple[PeerId, type], Contribution | Final]] = {}
        self._lost: set[PeerId] = set()
        self._hopeless: list[int] = []  # chunks of ours to which nobody could contribute
        self._offers = Offers()
        self.results = Results(len(plan.owners), shelf)
        self.lacking = Lacking(plan, self._owners, self._owned, self.results, self._offers, self._lost)
        self.taken = 0  # payloads that came in and were of use

    def __repr__(self) -> str:
        return f"AllReduce(round={self._plan.round}, results={self.results.count}/{len(self.results)})"

    @property
    def is_complete(self) -> bool:
        """Whether every chunk's result is here."""
        return self.results.is_complete

    def owns_any(self) -> bool:
        """Whether this member owns chunks."""
        return bool(self._owned)

    @property
    def is_hopeless(self) -> bool:
        """Whether we own a chunk to which nobody is left who could contribute."""
        return any(self.results[chunk] is None and chunk in self._owned for chunk in self._hopeless)

    # -- inputs ---------------------------------------------------------------------------------------------

    def start(self) -> list[Effect]:
        """Send every chunk to its owner."""
        effects: list[Effect] = []
        for chunk in self._owners.send_order(self._me):
            effects += self._contribute(chunk)
        for chunk in list(self._owned):
            effects += self._finish_if_complete(chunk)
        return effects

    def receive_contribution(self, sender: PeerId, message: Contribution) -> list[Effect]:
        """A chunk for us to add."""
        self._check(sender, message.chunk)
        if sender not in self._plan.contributors():
            raise RemoteError("contributes with weight zero", sender)
        if message.epoch > self._owners.epoch(message.chunk):
            if not self._reducer.fits(message.chunk, len(message.payload)):
                raise misfit(message.chunk, message.payload, sender)
            return self._keep_early(sender, message)
        if message.epoch == self._owners.epoch(message.chunk) and self._owners.of(message.chunk) != self._me:
            raise RemoteError(f"contributes to chunk {message.chunk}, which is not ours", sender)
        owned = self._owned.get(message.chunk)
        if owned is None or self.results[message.chunk] is not None:
            return []
        self.taken += sender in owned.missing()
        return _blames(owned.add(sender, message.payload)) + self._finish_if_complete(message.chunk)

    def receive_final(self, sender: PeerId, message: Final) -> list[Effect]:
        """An owner's mean."""
        self._check(sender, message.chunk)
        is_early = message.epoch > self._owners.epoch(message.chunk)
        if not is_early and sender != self._owners.of(message.chunk):
            if message.epoch == self._owners.epoch(message.chunk):
                raise RemoteError(f"sent a result for chunk {message.chunk}, which it does not own", sender)
            return []
        if len(message.mask) != mask_size(self._plan.members) or not any(message.mask):
            raise RemoteError("sent a result whose mask does not fit the group", sender)
        if self.results[message.chunk] is not None:
            return []
        self._shelf.check(message.chunk, message.payload, sender)
        if is_early:
            return self._keep_early(sender, message)
        self.results.keep(message.chunk, message.mask, message.payload)
        self.taken += 1
        return []

    def receive_want(self, sender: PeerId, message: Want) -> list[Effect]:
        """Send what somebody lacks; nothing, if we lack it ourselves."""
        for chunk in message.contributions + message.results:
            self._check(sender, chunk)
        effects: list[Effect] = []
        for chunk in dict.fromkeys(message.contributions):
            if self._owners.of(chunk) == sender:
                effects += self._hand_over(chunk)
        for chunk in dict.fromkeys(message.results):
            if self._owners.of(chunk) == self._me and self.results[chunk] is not None:
                effects.append(self._send_final(sender, chunk))
        return effects

    def receive_have(self, sender: PeerId, message: Have) -> list[Effect]:
        """Somebody holds what we were made owner of: take it instead of computing it."""
        self._check(sender, message.chunk)
        if message.chunk not in self._owned or self.results[message.chunk] is not None:
            return []
        self._offers.note(sender, message.chunk, message.hash)
        if not self._offers.choose(message.chunk, sender, self._lost):
            return []
        return [self._shelf.fetch(self._plan.round, self._plan.part, message.chunk, message.hash, sender)]

    def adopt(self, chunk: int, mask: bytes, payload: Payload) -> list[Effect]:
        """A result that was offered to us and fetched by hash; as owner, hand it to everyone."""
        if self.results[chunk] is not None or not self._offers.include(chunk, mask, payload):
            return []
        self.results.keep(chunk, mask, payload)
        self.taken += 1
        return self._broadcast(chunk) if self._owners.of(chunk) == self._me else []

    def reassign(self, leader: PeerId, assignments: tuple[Assignment, ...]) -> list[Effect]:
        """Follow a leader's Reassign (or our own)."""
        for assignment in assignments:
            self._check(leader, assignment.chunk)
            if assignment.owner not in self._plan.members:
                raise RemoteError("makes a stranger the owner of a chunk", leader)
        effects: list[Effect] = []
        for assignment in assignments:
            effects += self._follow(leader, assignment)
        return effects

    def lose(self, peer: PeerId) -> list[Effect]:
        """Go on without `peer` as contributor. Its chunks are the leader's business."""
        self._lost.add(peer)
        effects: list[Effect] = []
        for chunk, owned in list(self._owned.items()):
            if self.results[chunk] is None:
                effects += _blames(owned.lose(peer)) + self._finish_if_complete(chunk)
        return effects

    # -- the leader's part ----------------------------------------------------------------------------------

    def reassignment(self, ballot: Ballot, sequence: int, everything: bool) -> Reassign | None:
        """New owners for the chunks that this member lacks and whose owner is lost.

        A new leader renews `everything` it lacks: it may not know what its predecessor had moved.
        """
        moving = [chunk for chunk in self.results.unfinished() if everything or self._owners.of(chunk) in self._lost]
        if not moving:
            return None
        moves = self._owners.moves(moving, self._lost, (ballot.counter, sequence))
        return Reassign(self._plan.round, self._plan.part, ballot, moves)

    def moved(self, ballot: Ballot) -> Reassign | None:
        """All that was moved so far, for somebody who may have missed it."""
        moves = self._owners.moved()
        return Reassign(self._plan.round, self._plan.part, ballot, moves) if moves else None

    # -- inside ---------------------------------------------------------------------------------------------

    def _check(self, sender: PeerId, chunk: int) -> None:
        if sender not in self._plan.members:
            raise RemoteError("is not in this round's group", sender)
        if chunk >= len(self._owners):
            raise RemoteError(f"names chunk {chunk} of {len(self._owners)}", sender)

    def _keep_early(self, sender: PeerId, message: Contribution | Final) -> list[Effect]:
        """The newest of each kind from each member waits; so nobody can make us hold more than one round's bytes.

        Means were found to be such of their chunk, and contributions to be of a size that these have.
        """
        waiting = self._early.setdefault(message.chunk, {})
        self.taken += (sender, type(message)) not in waiting
        waiting[sender, type(message)] = message
        return []

    def _contribute(self, chunk: int) -> list[Effect]:
        if self._contribution is None:
            return []
        owner, plan, make = self._owners.of(chunk), self._plan, partial(self._contribution, chunk)
        if owner == self._me:
            self._owned[chunk].hold(self._me, make)
            return []
        message = Contribution(plan.round, plan.part, plan.attempt, chunk, self._owners.epoch(chunk), b"")
        return [Send(owner, message, make, self._wanted.contributions)]

    def _finish_if_complete(self, chunk: int) -> list[Effect]:
        owned = self._owned[chunk]
        if owned.missing() or self.results[chunk] is not None:
            return []
        blames = _blames(owned.fold())
        if owned.is_hopeless:
            self._hopeless.append(chunk)
            return blames
        self.results.keep(chunk, *owned.result())
        return blames + self._broadcast(chunk)

    def _broadcast(self, chunk: int) -> list[Effect]:
        final, is_wanted = self._final(chunk), self._wanted.means
        others = (peer for peer in self._plan.members if peer != self._me and peer not in self._lost)
        return [Send(peer, final, is_wanted=is_wanted) for peer in others]

    def _send_final(self, to: PeerId, chunk: int) -> Send:
        return Send(to, self._final(chunk), is_wanted=self._wanted.means)

    def _final(self, chunk: int) -> Final:
        result, plan = self.results[chunk], self._plan
        assert result is not None
        return Final(plan.round, plan.part, plan.attempt, chunk, self._owners.epoch(chunk), result.mask, result.payload)

    def _follow(self, leader: PeerId, assignment: Assignment) -> list[Effect]:
        chunk, before = assignment.chunk, self._owners.follow(assignment)
        if before is None:
            return []
        effects: list[Effect] = []
        if assignment.owner != self._me:
            self._owned.pop(chunk, None)
            effects += self._hand_over(chunk) if assignment.owner != before else []
        elif before != self._me:
            effects += self._inherit(chunk)
        elif self.results[chunk] is not None and leader != self._me:
            effects.append(self._send_final(leader, chunk))  # a new leader lacks it; the others have been sent it
        for (sender, _), message in self._early.pop(chunk, {}).items():
            effects += self._replay(sender, message)
        return effects

    def _replay(self, sender: PeerId, message: Contribution | Final) -> list[Effect]:
        """A message that came before its Reassign; its sender is not to be blamed on whoever sent that."""
        try:
            if isinstance(message, Final):
                return self.receive_final(sender, message)
            return self.receive_contribution(sender, message)
        except RemoteError as error:
            return [Tell(Blamed(sender, error.reason))]

    def _inherit(self, chunk: int) -> list[Effect]:
        if self.results[chunk] is not None:
            return self._broadcast(chunk)
        owned = self._owned[chunk] = OwnedChunk(self._plan, chunk, self._reducer)
        effects = self._contribute(chunk)
        for peer in [member for member in self._plan.members if member in self._lost]:
            effects += _blames(owned.lose(peer))
        return effects + self._finish_if_complete(chunk)

    def _hand_over(self, chunk: int) -> list[Effect]:
        held, plan = self.results[chunk], self._plan
        if held is None:
            return self._contribute(chunk)
        return [Send(self._owners.of(chunk), Have(plan.round, plan.part, plan.attempt, chunk, held.hash))]


def _blames(errors: list[PayloadError]) -> list[Effect]:
    return [Tell(Blamed(error.peer, error.reason)) for error in errors if error.peer is not None]
