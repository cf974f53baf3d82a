"""Butterfly all-reduce of one roster: every member's chunks go to their owners, the owners' means to everyone.

Rules:
- A chunk has one owner at a time. Only a leader moves it, by Reassign; the epoch grows with each move, and
  messages of lower epochs are refused from then on. Messages of a higher epoch wait for their Reassign.
- An owner that loses a contributor finishes with those it has. A new owner takes over what the old one had
  already handed out (Have, Fetch) rather than compute it again.
- Results are provisional: a round agrees on hashes, by PREPARE.
- Nothing is resent unless it is asked for (Want).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest

from shoal.protocol.effects import Effect, Event, Send, Tell
from shoal.protocol.errors import PayloadError, RemoteError
from shoal.protocol.ids import Digest, PeerId, result_hash
from shoal.protocol.messages.rounds import (
    Assignment,
    Ballot,
    ChunkRef,
    Contribution,
    Final,
    Have,
    Noted,
    Reassign,
    Want,
)
from shoal.protocol.owned import OwnedChunk
from shoal.protocol.reducer import Reducer
from shoal.protocol.roster import Plan
from shoal.protocol.shelf import Shelf

Epoch = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Result:
    """A chunk's mean, as its owner encoded it."""

    mask: bytes
    payload: bytes
    hash: Digest


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
        contribution: Callable[[int], bytes] | None,
        shelf: Shelf,
    ) -> None:
        self._me = me
        self._plan = plan
        self._reducer = reducer
        self._shelf = shelf
        contributes = me in plan.contributors() and contribution is not None
        self._contribution = contribution if contributes else None
        self._owners = list(plan.owners)
        self._epochs: list[Epoch] = [(0, 0)] * len(plan.owners)
        self._owned = {
            chunk: OwnedChunk(plan, chunk, reducer) for chunk in range(len(plan.owners)) if plan.owners[chunk] == me
        }
        self._early: dict[int, list[tuple[PeerId, Contribution | Final]]] = {}
        self._lost: set[PeerId] = set()
        self.results: list[Result | None] = [None] * len(plan.owners)

    def __repr__(self) -> str:
        have = sum(result is not None for result in self.results)
        return f"AllReduce(round={self._plan.round}, results={have}/{len(self.results)})"

    @property
    def is_complete(self) -> bool:
        """Whether every chunk's result is here."""
        return None not in self.results

    def owns_any(self) -> bool:
        """Whether this member owns chunks."""
        return self._me in self._owners

    def waiting_for(self) -> list[PeerId]:
        """Whom this member's progress hangs on, in roster order."""
        wanted = [self._owners[chunk] for chunk in self._unfinished()]
        wanted += [
            peer for chunk in self._owned if self.results[chunk] is None for peer in self._owned[chunk].missing()
        ]
        return [peer for peer in self._plan.members if peer in wanted and peer != self._me]

    # -- inputs ---------------------------------------------------------------------------------------------

    def start(self) -> list[Effect]:
        """Send every chunk to its owner, interleaved so that no owner is everybody's first."""
        effects: list[Effect] = []
        for chunk in self._send_order():
            effects += self._contribute(chunk)
        for chunk in list(self._owned):
            effects += self._finish_if_complete(chunk)
        return effects

    def receive_contribution(self, sender: PeerId, message: Contribution) -> list[Effect]:
        """A chunk for us to add."""
        self._check(sender, message.chunk)
        if sender not in self._plan.contributors():
            raise RemoteError("contributes with weight zero", sender)
        if message.epoch > self._epochs[message.chunk]:
            return self._keep_early(sender, message)
        owned = self._owned.get(message.chunk)
        if owned is None or self.results[message.chunk] is not None:
            return []
        return _blames(owned.add(sender, message.payload)) + self._finish_if_complete(message.chunk)

    def receive_final(self, sender: PeerId, message: Final) -> list[Effect]:
        """An owner's mean."""
        self._check(sender, message.chunk)
        if message.epoch > self._epochs[message.chunk]:
            return self._keep_early(sender, message)
        if self._is_stale(sender, message):
            return []
        result = Result(message.mask, message.payload, result_hash(message.mask, message.payload))
        held = self.results[message.chunk]
        if held is not None and held.hash != result.hash:
            raise RemoteError(f"sent two results for chunk {message.chunk}", sender)
        self._keep(message.chunk, result)
        return []

    def receive_want(self, sender: PeerId, message: Want) -> list[Effect]:
        """Send again what somebody lacks; say that we live if there is nothing to send."""
        for chunk in message.contributions + message.results:
            self._check(sender, chunk)
        effects: list[Effect] = []
        for chunk in message.contributions:
            if self._owners[chunk] == sender:
                effects += self._hand_over(chunk)
        for chunk in message.results:
            if self._owners[chunk] == self._me and self.results[chunk] is not None:
                effects.append(Send(sender, self._final(chunk)))
        return effects or [Send(sender, Noted(self._plan.round, self._plan.part, self._plan.attempt))]

    def receive_have(self, sender: PeerId, message: Have) -> list[Effect]:
        """Somebody holds what we were made owner of: take it instead of computing it."""
        self._check(sender, message.chunk)
        if message.chunk not in self._owned or self.results[message.chunk] is not None:
            return []
        return [self._shelf.fetch(self._plan.round, self._plan.part, message.chunk, message.hash, sender)]

    def adopt(self, chunk: int, mask: bytes, payload: bytes) -> list[Effect]:
        """A result that was fetched by hash; as owner, hand it to everyone."""
        if self.results[chunk] is not None:
            return []
        self._keep(chunk, Result(mask, payload, result_hash(mask, payload)))
        return self._broadcast(chunk) if self._owners[chunk] == self._me else []

    def reassign(self, leader: PeerId, assignments: tuple[Assignment, ...]) -> list[Effect]:
        """Follow a leader's Reassign (or our own)."""
        for assignment in assignments:
            self._check(leader, assignment.chunk)
            if assignment.owner not in self._plan.members:
                raise RemoteError("makes a stranger the owner of a chunk", leader)
        effects: list[Effect] = []
        for assignment in assignments:
            if assignment.epoch > self._epochs[assignment.chunk]:
                effects += self._follow(assignment)
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
        moving = [chunk for chunk in self._unfinished() if everything or self._owners[chunk] in self._lost]
        heirs = [peer for peer in self._plan.members if peer in self._plan.owners and peer not in self._lost]
        heirs = heirs or [peer for peer in self._plan.members if peer not in self._lost]
        epoch = (ballot.counter, sequence)
        assignments = []
        for place, chunk in enumerate(moving):
            owner = self._owners[chunk]
            heir = owner if owner not in self._lost else heirs[place % len(heirs)]
            assignments.append(Assignment(chunk, heir, epoch))
        if not assignments:
            return None
        return Reassign(self._plan.round, self._plan.part, ballot, tuple(assignments))

    def want(self, peer: PeerId) -> list[Effect]:
        """Ask `peer` for what this member still lacks from it."""
        contributions = tuple(
            chunk for chunk, owned in self._owned.items() if self.results[chunk] is None and peer in owned.missing()
        )
        results = tuple(chunk for chunk in self._unfinished() if self._owners[chunk] == peer)
        if not contributions and not results:
            return []
        plan = self._plan
        return [Send(peer, Want(plan.round, plan.part, plan.attempt, contributions, results))]

    def references(self) -> tuple[ChunkRef, ...]:
        """The complete result, as PREPARE names it."""
        return tuple(ChunkRef(result.hash, result.mask) for result in self.results if result is not None)

    def is_expected(self, chunk: int) -> bool:
        """Whether the owner of a chunk that is not here is about to send it."""
        return self.results[chunk] is None and self._owners[chunk] not in self._lost

    def lost(self) -> list[PeerId]:
        """Members that this member goes on without, in roster order."""
        return [peer for peer in self._plan.members if peer in self._lost]

    # -- inside ---------------------------------------------------------------------------------------------

    def _check(self, sender: PeerId, chunk: int) -> None:
        if sender not in self._plan.members:
            raise RemoteError("is not in this round's group", sender)
        if chunk >= len(self._owners):
            raise RemoteError(f"names chunk {chunk} of {len(self._owners)}", sender)

    def _is_stale(self, sender: PeerId, message: Final) -> bool:
        """A result of an owner that has been replaced, or that never was one."""
        return sender != self._owners[message.chunk] or message.epoch < self._epochs[message.chunk]

    def _unfinished(self) -> list[int]:
        return [chunk for chunk, result in enumerate(self.results) if result is None]

    def _keep(self, chunk: int, result: Result) -> None:
        self.results[chunk] = result
        self._shelf.put(chunk, result.hash, result.mask, result.payload)

    def _keep_early(self, sender: PeerId, message: Contribution | Final) -> list[Effect]:
        waiting = self._early.setdefault(message.chunk, [])
        if len(waiting) < 2 * len(self._plan.members):
            waiting.append((sender, message))
        return []

    def _send_order(self) -> list[int]:
        members = self._plan.members
        place = members.index(self._me)
        rotation = members[place + 1 :] + members[: place + 1]
        shares = [[chunk for chunk, owner in enumerate(self._owners) if owner == member] for member in rotation]
        return [chunk for turn in zip_longest(*shares) for chunk in turn if chunk is not None]

    def _contribute(self, chunk: int) -> list[Effect]:
        if self._contribution is None:
            return []
        payload = self._contribution(chunk)
        if self._owners[chunk] == self._me:
            return _blames(self._owned[chunk].add(self._me, payload))
        plan = self._plan
        message = Contribution(plan.round, plan.part, plan.attempt, chunk, self._epochs[chunk], payload)
        return [Send(self._owners[chunk], message)]

    def _finish_if_complete(self, chunk: int) -> list[Effect]:
        owned = self._owned[chunk]
        if not owned.is_complete or self.results[chunk] is not None:
            return []
        mask, payload = owned.result()
        self._keep(chunk, Result(mask, payload, result_hash(mask, payload)))
        return self._broadcast(chunk)

    def _broadcast(self, chunk: int) -> list[Effect]:
        final = self._final(chunk)
        return [Send(peer, final) for peer in self._plan.members if peer != self._me and peer not in self._lost]

    def _final(self, chunk: int) -> Final:
        result, plan = self.results[chunk], self._plan
        assert result is not None
        return Final(plan.round, plan.part, plan.attempt, chunk, self._epochs[chunk], result.mask, result.payload)

    def _follow(self, assignment: Assignment) -> list[Effect]:
        chunk, old = assignment.chunk, self._owners[assignment.chunk]
        self._owners[chunk], self._epochs[chunk] = assignment.owner, assignment.epoch
        effects: list[Effect] = []
        if assignment.owner == self._me:
            effects += self._inherit(chunk)
        elif assignment.owner != old:
            self._owned.pop(chunk, None)
            effects += self._hand_over(chunk)
        for sender, message in self._early.pop(chunk, []):
            if isinstance(message, Final):
                effects += self.receive_final(sender, message)
            else:
                effects += self.receive_contribution(sender, message)
        return effects

    def _inherit(self, chunk: int) -> list[Effect]:
        if self.results[chunk] is not None:
            return self._broadcast(chunk)
        if chunk in self._owned:
            return []
        owned = self._owned[chunk] = OwnedChunk(self._plan, chunk, self._reducer)
        effects = self._contribute(chunk)
        for peer in self.lost():
            effects += _blames(owned.lose(peer))
        return effects + self._finish_if_complete(chunk)

    def _hand_over(self, chunk: int) -> list[Effect]:
        held, plan = self.results[chunk], self._plan
        if held is None:
            return self._contribute(chunk)
        return [Send(self._owners[chunk], Have(plan.round, plan.part, plan.attempt, chunk, held.hash))]


def _blames(errors: list[PayloadError]) -> list[Effect]:
    return [Tell(Blamed(error.peer, error.reason)) for error in errors if error.peer is not None]
