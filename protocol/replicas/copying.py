"""Getting a replica: one member's, as it has signed it, whole; and giving ours to those who ask.

    joiner                                      donor
    GET_REPLICA(least) ───────────────────────► one
             ◄─────────────────── REPLICA_IS    signed, pinned
    GET_STATE_CHUNK(i) ... ───────────────────► the same one, a few at a time
             ◄─────────────────── STATE_CHUNK

Rules: nobody certifies a replica but its donor: all of it comes from one, and is of the run's layout; nobody is asked
whose round is far from where most stand. Every chunk is checked by hash, and for numbers with which nobody could go on,
as a donor may sign anything; who sends a wrong one is named, and another is asked. A silent donor is reminded once, as
words may be lost, and replaced after a while, longer each time: perhaps all links are slow. Whose answer was of no use
is left alone for as long, others first. What has come goes to its place at once, and to our disk: who is killed, and is
back before its donor lets that replica go, gets the rest. What came from one donor is of no use with another.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import islice

from shoal.protocol.base.effects import Blamed, Effect, Send, Tell, Timer, Wake
from shoal.protocol.base.errors import PayloadError, RemoteError
from shoal.protocol.base.ids import PeerId, content_hash
from shoal.protocol.base.signing import Signer, check_signature, signed
from shoal.protocol.base.wire import MAX_INT
from shoal.protocol.catchup.donor import Donor, Room, state_root
from shoal.protocol.catchup.transfer import MOST_PATIENCE, PATIENCE, WINDOW
from shoal.protocol.member.facts import PART
from shoal.protocol.membership.view import View, fastest, without_relay
from shoal.protocol.messages.replicas import GetReplica, ReplicaIs
from shoal.protocol.messages.transfer import GetStateChunk, StateChunk
from shoal.protocol.replicas.context import pack, standing
from shoal.protocol.replicas.events import ReplicaReceived
from shoal.protocol.replicas.facts import ReplicaFacts

MAX_LIARS = 64  # that are remembered

COPY_MESSAGES = GetReplica | ReplicaIs | GetStateChunk | StateChunk


@dataclass(slots=True)
class Copy:
    """A replica in the making."""

    offer: ReplicaIs
    here: set[int]  # chunks that have come
    begun: tuple[float, int]  # when, and how many were here then
    asked: dict[int, None] = field(default_factory=dict)

    def next(self) -> list[int]:
        """Chunks to ask for now."""
        open = (each for each in range(len(self.offer.chunks)) if each not in self.here and each not in self.asked)
        return list(islice(open, WINDOW - len(self.asked)))

    @property
    def is_complete(self) -> bool:
        """Whether every chunk is here."""
        return len(self.here) == len(self.offer.chunks)

    def seconds_left(self, now: float) -> float | None:
        """How long the rest takes, at the pace so far; None while nothing has come."""
        since, before = self.begun
        came = len(self.here) - before
        return (now - since) / came * (len(self.offer.chunks) - len(self.here)) if came else None


class Copying:
    """Both sides of it, at one member."""

    def __init__(self, me: PeerId, facts: ReplicaFacts, view: View, room: Room, signer: Signer) -> None:
        self._me = me
        self._facts = facts
        self._view = view
        self._room = room
        self._signer = signer
        self._source: PeerId | None = None
        self._copy: Copy | None = None
        self._heard_at = 0.0
        self._patience = PATIENCE
        self._least = 0
        self._tries = 0
        self._was_reminded = False  # our donor, since it last brought something
        self._aside: dict[PeerId, float] = {}  # until when those whose answers were of no use are not asked
        self._token = 0
        self._liars: deque[PeerId] = deque(maxlen=MAX_LIARS)
        self.donor = Donor(PART, lambda round, root: True, room)
        self.active = False

    def __repr__(self) -> str:
        return f"Copying(active={self.active}, from {self._source}, {self.progress()}, {self.donor})"

    def progress(self) -> tuple[int, int]:
        """(chunks here, chunks in all) of the replica that is being copied."""
        return (len(self._copy.here), len(self._copy.offer.chunks)) if self._copy is not None else (0, 0)

    def seconds_left(self, now: float) -> float | None:
        """How long the replica that is being copied still takes; None if that is not known."""
        return self._copy.seconds_left(now) if self._copy is not None else None

    # -- joiner ---------------------------------------------------------------------------------------------

    def start(self, now: float, least: int) -> list[Effect]:
        """Get somebody's replica of round `least` or later; goes on until it is here, or `stop`."""
        if self.active:
            return []
        self.active, self._least, self._patience = True, least, PATIENCE
        self._aside.clear()
        self._token += 1
        return [*self._ask_somebody(now), self._wake("look")]

    def stop(self) -> None:
        """There is no need any more."""
        self._end()
        self._room.drop()

    def take(self) -> ReplicaReceived | None:
        """That the replica is complete, in the room for it, once it is; this is said once."""
        copy = self._copy
        if copy is None or not copy.is_complete:
            return None
        self._end()
        offer = copy.offer
        return ReplicaReceived(offer.round, state_root(offer.layout, offer.chunks), offer.peer)

    def _end(self) -> None:
        self.active, self._copy, self._source = False, None, None

    def fire(self, now: float, timer: Timer) -> list[Effect]:
        """Look after a silent donor, or after leases that run out."""
        if timer.name == "leases":
            return self.donor.look(now, self._wake("leases"))
        if timer.token != self._token or not self.active:
            return []
        is_gone = self._source is None or not self._view.is_alive(self._source)
        if is_gone or now - self._heard_at > self._patience:
            asked = self._ask_another(now) if is_gone or self._was_reminded else self._remind(now)
            return [*asked, self._wake("look")]
        return [self._wake("look")]

    def receive(self, now: float, sender: PeerId, message: COPY_MESSAGES) -> list[Effect]:
        """Any message about replicas."""
        match message:
            case GetReplica():
                return self._offer(now, sender, message)
            case GetStateChunk():
                return self.donor.serve(now, sender, message)
            case ReplicaIs() if self.active and sender == self._source and self._copy is None:
                return self._receive_offer(now, sender, message)
            case StateChunk() if self._copy is not None and sender == self._source:
                return self._receive_chunk(now, sender, message, self._copy)
        return []

    # -- inside: joiner -------------------------------------------------------------------------------------

    def _donors(self) -> list[PeerId]:
        """Who may give us its replica, best first: those near most of the others; if nobody trains, whoever has one."""
        rounds, limit = standing(self._view, self._facts), self._facts.limit
        most = pack(rounds.values())
        if most is None:
            statuses = {peer: self._view.status(peer) for peer in self._view.alive()}
            rounds = {p: s.round for p, s in statuses.items() if s is not None and s.history == self._facts.history}
        near = [peer for peer, round in rounds.items() if self._least <= round <= limit and self._is_near(round)]
        if all(peer in self._liars for peer in near):
            self._liars.clear()
        honest = [peer for peer in near if peer not in self._liars]
        return fastest(without_relay(self._me, honest, self._view), self._view)

    def _is_near(self, round: int) -> bool:
        most = pack(standing(self._view, self._facts).values())
        return most is None or abs(round - most) <= self._facts.window

    def _ask_somebody(self, now: float) -> list[Effect]:
        self._aside = {peer: until for peer, until in self._aside.items() if until > now}
        donors = [peer for peer in self._donors() if peer not in self._aside]
        self._copy, self._heard_at, self._was_reminded = None, now, False
        self._source = donors[self._tries % len(donors)] if donors else None
        self._tries += 1
        return [Send(self._source, GetReplica(self._least))] if self._source is not None else []

    def _ask_another(self, now: float) -> list[Effect]:
        """Our donor does not answer in time, if we had one."""
        if self._source is not None:
            self._patience = min(MOST_PATIENCE, 2 * self._patience)
        return self._ask_somebody(now)

    def _remind(self, now: float) -> list[Effect]:
        """What our donor owes us may have been lost; what it is about to send it does not send twice."""
        source, copy = self._source, self._copy
        if source is None or copy is None:
            return self._ask_another(now)
        self._heard_at, self._was_reminded = now, True
        return [Send(source, GetStateChunk(PART, copy.offer.round, index)) for index in copy.asked]

    def _do_without(self, now: float, peer: PeerId) -> list[Effect]:
        """What `peer` gives us is of no use now: others first, and it not at once, if there are none."""
        self._aside[peer] = now + self._patience
        return self._ask_another(now)

    def _receive_offer(self, now: float, sender: PeerId, offer: ReplicaIs) -> list[Effect]:
        if offer.peer != sender:
            raise RemoteError("offers a replica that is not its own", sender)
        check_signature(offer, sender, self._signer)
        facts = self._facts
        if (offer.layout, len(offer.chunks)) != (facts.layout, facts.state_chunks):
            return self._accuse(now, sender, "offers a replica of another layout than this run's")
        if offer.round > facts.limit:
            return self._accuse(now, sender, f"offers a replica of round {offer.round}, beyond the last, {facts.limit}")
        if offer.round < self._least or not self._is_near(offer.round):
            return self._do_without(now, sender)
        here = self._room.begin(offer.round, offer.layout, offer.chunks)
        self._heard_at, self._copy = now, Copy(offer, here, (now, len(here)))
        return self._ask_chunks(sender, self._copy)

    def _receive_chunk(self, now: float, sender: PeerId, message: StateChunk, copy: Copy) -> list[Effect]:
        if message.round != copy.offer.round or message.index not in copy.asked:
            return []
        if not message.payload:
            return self._do_without(now, sender)
        if content_hash(message.payload) != copy.offer.chunks[message.index]:
            return self._accuse(now, sender, f"sent a wrong chunk {message.index} of its replica")
        try:
            self._facts.check_state(message.index, message.payload)
        except PayloadError as error:
            return self._accuse(now, sender, f"has signed a bad chunk {message.index} of a replica: {error.reason}")
        del copy.asked[message.index]
        copy.here.add(message.index)
        self._room.put(message.index, message.payload)
        self._heard_at, self._was_reminded = now, False
        return self._ask_chunks(sender, copy)

    def _ask_chunks(self, donor: PeerId, copy: Copy) -> list[Effect]:
        wanted = copy.next()
        copy.asked.update(dict.fromkeys(wanted))
        return [Send(donor, GetStateChunk(PART, copy.offer.round, index)) for index in wanted]

    def _accuse(self, now: float, peer: PeerId, reason: str) -> list[Effect]:
        if peer not in self._liars:
            self._liars.append(peer)
        return [Tell(Blamed(peer, reason)), *self._do_without(now, peer)]

    # -- inside: donor --------------------------------------------------------------------------------------

    def _offer(self, now: float, sender: PeerId, message: GetReplica) -> list[Effect]:
        round = self.donor.lease(now, sender, range(message.least, MAX_INT))
        described = self._room.describe(round) if round is not None else None
        if round is None or described is None:
            return []
        offer = signed(ReplicaIs(self._me, round, *described, b""), self._signer)
        return [Send(sender, offer), *self.donor.watch(self._wake("leases"))]

    def _wake(self, name: str) -> Wake:
        return Wake(PATIENCE / 3, Timer("copying", name, self._token))
