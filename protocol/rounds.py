"""The rounds of one part of a run: matchmaking, all-reduce and commit put together, one round after the other.

    open(base) ──► training ──submit──► matching ──roster──► reducing ──proposal──► preparing ──decided──► applying
                      ▲                    ▲                    │  group lost         │                       │
                      │                    └────────────────────┴─────────────────────┘                       │
                      └──────────────────────────── applied(root) ◄───────────────────────────────────────────┘

Rules: messages of earlier rounds and attempts are answered with what was decided, or ignored; messages of the
next round wait until we are there; whoever is more than one round ahead makes us catch up. A round's inputs stay
untouched until it is decided, whatever happens to its attempts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shoal.protocol.attempt import Attempt, AttemptFailed, Context
from shoal.protocol.certificate import check_certificate, in_mask, next_base, result_digest
from shoal.protocol.commit import Decided
from shoal.protocol.effects import Effect, Event, Persist, Send, Tell, Timer, Wake
from shoal.protocol.errors import RemoteError
from shoal.protocol.estimate import Estimate
from shoal.protocol.ids import Digest, PeerId
from shoal.protocol.matchmaking import GroupFormed, HandIn, Matchmaking, Offer, View
from shoal.protocol.messages import rounds as wire
from shoal.protocol.reducer import Reducer
from shoal.protocol.roster import Base, Policy, check_join, check_roster
from shoal.protocol.shelf import Decision, Shelf
from shoal.protocol.signing import Signer, check_signature, signed
from shoal.protocol.voting import VoteState
from shoal.protocol.wire import Message

TICK = 1.0  # seconds
MAX_AHEAD = 4096  # messages kept for the next round
MAX_LATE = 256  # members that came too late for the group, kept to be told of the outcome


@dataclass(frozen=True, slots=True)
class Committed(Event):
    """A round is decided and all its bytes are here: apply it, then say `applied`."""

    decision: Decision
    counted: tuple[bool, ...]  # chunk by chunk: whether our own contribution is in it


@dataclass(frozen=True, slots=True)
class Aborted(Event):
    """An attempt came to nothing; the round goes on with the next one."""

    round: int
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class Behind(Event):
    """`peer` has committed rounds that we cannot follow one by one: catch up."""

    peer: PeerId
    round: int


class Rounds:
    """One member's rounds in one part of one run."""

    def __init__(
        self,
        me: PeerId,
        part: int,
        signer: Signer,
        view: View,
        policy: Policy,
        reducer: Callable[[int], Reducer],
        restored: wire.VoteRecord | None = None,
    ) -> None:
        self._me = me
        self._part = part
        self._signer = signer
        self._view = view
        self._policy = policy
        self._reducer = reducer  # opens the reducer of a round
        self._restored = restored
        self._spread = Estimate(initial=10.0, floor=0.5, ceiling=600.0)
        self._pace = Estimate(initial=2.0, floor=1.0, ceiling=60.0)
        self._base: Base | None = None
        self._applying: Decision | None = None
        self._ahead: dict[tuple[PeerId, type], Message] = {}
        self._contribution: Callable[[int], bytes] | None = None
        self._attempt: Attempt | None = None
        self._pending: tuple[wire.Certificate, tuple[wire.ChunkRef, ...]] | None = None  # decided, bytes missing
        self._late: list[PeerId] = []
        self._early: list[tuple[PeerId, Message]] = []  # of this round, before the roster
        self._asked_at = -1.0
        self._fetches = 0
        self._token = 0
        self._has_left = False
        self.shelf = Shelf()

    # -- read side ------------------------------------------------------------------------------------------

    @property
    def base(self) -> Base | None:
        """What the current round builds on; None before the state is here and while a commit is applied."""
        return self._base

    @property
    def phase(self) -> str:
        """A word for status: syncing, training, matching, reducing, preparing or applying."""
        if self._base is None:
            return "applying" if self._applying else "syncing"
        if self._attempt is not None:
            return self._attempt.phase
        return "matching" if self._matching.active else "training"

    def waiting_for(self) -> list[PeerId]:
        """Whom the current round hangs on."""
        return self.attempt.waiting_for() if self.attempt is not None else []

    @property
    def attempt(self) -> Attempt | None:
        """The group we are in, if there is one."""
        return self._attempt if self._base is not None else None

    # -- commands -------------------------------------------------------------------------------------------

    def open(self, now: float, base: Base) -> list[Effect]:
        """Stand on `base`: at the start of a run, after catching up, and after each commit."""
        self._base, self._applying = base, None
        self._contribution = None
        self._vote = VoteState(base.round + 1, self._part)
        if self._restored is not None and self._restored.round == base.round + 1:
            self._vote = VoteState.from_record(self._restored)
        self._matching = Matchmaking(
            self._me, self._part, base, self._vote, self._policy, self._view, self._signer, self._spread
        )
        self._attempt = None
        self._pending = None
        self._late, self._early = [], []
        self.shelf.open()
        self._token += 1
        effects = [self._wake(), *self._look_ahead()]
        ahead, self._ahead = self._ahead, {}
        for (sender, _), message in ahead.items():
            effects += self.receive(now, sender, message)
        return effects

    def submit(self, now: float, offer: Offer, contribution: Callable[[int], bytes] | None) -> list[Effect]:
        """Our inner steps are done: `contribution(chunk)` encodes our part of a chunk."""
        if self._base is None or self._has_left or self._matching.active or self._attempt is not None:
            return []
        self._contribution = contribution
        return self._digest(now, self._matching.submit(now, offer))

    def applied(self, now: float, root: Digest) -> list[Effect]:
        """The committed vector is applied and read back; `root` is the new state root."""
        assert self._applying is not None
        proposal = self._applying.certificate.proposal
        return self.open(now, next_base(proposal, root))

    def leave(self, now: float) -> list[Effect]:
        """Sign off: our voting ends, with our last vote on record."""
        if self._base is None or self._has_left:
            return []
        self._has_left = True
        vote = self._vote
        leave = wire.Leave(vote.round, vote.part, self._me, vote.promised, vote.prepared, b"")
        leave = signed(leave, self._signer)
        return [
            Persist(f"vote-{self._part}", vote.record()),
            *(Send(peer, leave) for peer in self._view.alive()),
        ]

    def peer_down(self, now: float, peer: PeerId) -> list[Effect]:
        """Membership has given `peer` up."""
        if self._base is None or self._has_left:
            return []
        if self._attempt is None:
            return self._digest(now, self._matching.peer_changed(now))
        return self._digest(now, self._attempt.lose(now, peer))

    def peer_up(self, now: float, peer: PeerId) -> list[Effect]:
        """Membership has found `peer`, or has news of it."""
        if self._base is None or self._has_left or self._attempt is not None:
            return []
        return self._digest(now, self._matching.peer_changed(now))

    # -- inputs ---------------------------------------------------------------------------------------------

    def receive(self, now: float, sender: PeerId, message: Message) -> list[Effect]:
        """Any message of this part's rounds."""
        round = _round_of(message)
        if self._has_left:
            return []
        if self.shelf.decision(round) is not None:
            return self._answer_late(sender, message)
        if self._base is None or round == self._base.round + 2:
            return self._keep_ahead(sender, message)
        if round <= self._base.round:
            return [Send(sender, wire.TooOld(round, self._part))] if isinstance(message, wire.Ask) else []
        if round > self._base.round + 1:
            return [Tell(Behind(sender, round))]
        return self._digest(now, self._receive_current(now, sender, message))

    def fire(self, now: float, timer: Timer) -> list[Effect]:
        """A timer of ours or of matchmaking."""
        if self._base is None or self._has_left:
            return []
        if timer.core == "matchmaking":
            return self._digest(now, self._matching.fire(now, timer))
        if timer.token != self._token:
            return []
        effects: list[Effect] = [self._wake()]
        if self._attempt is not None:
            effects += self._attempt.tick(now)
        effects += self._fetch_decided()
        return self._digest(now, effects + self._look_ahead())

    # -- inside -----------------------------------------------------------------------------------------------

    def _receive_current(self, now: float, sender: PeerId, message: Message) -> list[Effect]:
        match message:
            case wire.Join():
                return self._receive_join(now, sender, message)
            case wire.Noted():
                if self._attempt is not None:
                    self._attempt.noted(now, sender)
                return self._matching.receive_noted(sender, message)
            case wire.Retry():
                return self._receive_retry(now, sender, message.attempt)
            case wire.Call():
                return [Tell(HandIn(message.round))]
            case wire.Roster():
                return self._receive_roster(now, sender, message)
            case wire.Commit():
                return self._receive_commit(message)
            case wire.TooOld():
                return [Tell(Behind(sender, message.round))]
            case wire.Leave():
                return self._receive_leave(now, sender, message)
            case wire.Fetch():
                return self.shelf.answer(sender, message)
            case wire.Fetched():
                self.shelf.take(sender, message)
                return self._attempt.fetched(now, sender, message) if self._attempt is not None else []
        return self._receive_in_attempt(now, sender, message)

    def _answer_late(self, sender: PeerId, message: Message) -> list[Effect]:
        """Somebody is still in a round that we have decided."""
        match message:
            case wire.Fetch():
                return self.shelf.answer(sender, message)
            case wire.Ask() | wire.Join() | wire.Poll() | wire.Prepare() | wire.Want():
                return self.shelf.answer(sender, wire.Ask(_round_of(message), self._part, 0))
        return []

    def _receive_in_attempt(self, now: float, sender: PeerId, message: Message) -> list[Effect]:
        number = _attempt_of(message)
        if self._attempt is not None and (
            number == self._attempt.number or isinstance(message, wire.Refuse | wire.Ask)
        ):
            return self._attempt.receive(now, sender, message)
        if number >= max(self._vote.attempt, 1):
            if len(self._early) < MAX_AHEAD:
                self._early.append((sender, message))
            return self._ask_for_roster(now, sender)
        if isinstance(message, wire.Poll | wire.Prepare | wire.Want | wire.Ask):
            return [Send(sender, wire.Retry(self._base_round + 1, self._part, self._vote.attempt))]
        return []

    def _ask_for_roster(self, now: float, sender: PeerId) -> list[Effect]:
        """Somebody is at work in a group whose roster has not reached us."""
        if now - self._asked_at < self._pace.floor:
            return []
        self._asked_at = now
        return [Send(sender, wire.Ask(self._base_round + 1, self._part, 0))]

    def _receive_join(self, now: float, sender: PeerId, join: wire.Join) -> list[Effect]:
        if join.peer != sender:
            raise RemoteError(f"sent a JOIN in the name of {join.peer}", sender)
        attempt = self._attempt
        if attempt is None:
            return self._matching.receive_join(now, join)
        if sender in attempt.plan.members and join.attempt == attempt.number:
            return attempt.receive(now, sender, wire.Ask(join.round, join.part, 0))
        check_join(join, self._policy, self._signer)
        self._late = [*(peer for peer in self._late if peer != sender), sender][-MAX_LATE:]
        noted = Send(sender, wire.Noted(join.round, join.part, join.attempt))
        return [noted, *attempt.overtaken(now, sender, join.attempt)]

    def _receive_retry(self, now: float, sender: PeerId, number: int) -> list[Effect]:
        if self._attempt is None:
            return self._matching.move_up(now, number)
        return self._attempt.overtaken(now, sender, number)

    def _receive_roster(self, now: float, sender: PeerId, roster: wire.Roster) -> list[Effect]:
        assert self._base is not None
        if self._attempt is not None and roster.attempt <= self._attempt.number:
            return []
        if roster.attempt < self._vote.attempt:
            return [Send(sender, wire.Retry(roster.round, roster.part, self._vote.attempt))]
        check_roster(roster, self._base, self._policy, self._signer)
        if self._me not in [join.peer for join in roster.joins]:
            return []
        if not self._matching.has_offer:  # we joined in an earlier life, and have nothing to contribute any more
            return [Send(sender, wire.Retry(roster.round, roster.part, self._vote.attempt + 1))]
        return self._begin(now, roster)

    def _begin(self, now: float, roster: wire.Roster) -> list[Effect]:
        assert self._base is not None
        self._matching.pause(roster.attempt)
        effects = self._matching.receive_leaves(now, roster.leaves)
        context = Context(
            self._me,
            self._base,
            self._vote,
            self._policy,
            self._signer,
            self.shelf,
            self._matching.leaves,
            self._pace,
        )
        self._attempt = Attempt(context, roster, self._reducer(roster.round), self._contribution, now)
        effects += self._attempt.start(now)
        early, self._early = self._early, []
        for sender, message in early:
            if _attempt_of(message) == roster.attempt:
                effects += self._attempt.receive(now, sender, message)
        for peer in self._attempt.plan.members:
            if peer != self._me and not self._view.is_alive(peer):
                effects += self._attempt.lose(now, peer)
        return effects

    def _receive_commit(self, message: wire.Commit) -> list[Effect]:
        assert self._base is not None
        if self._pending is not None:
            return []
        proposal = message.certificate.proposal
        if result_digest(message.chunks) != proposal.result:
            raise RemoteError("commits chunks that are not the result", message.certificate.ballot.leader)
        check_certificate(message.certificate, self._base, self._signer)
        return [Tell(Decided(message.certificate, message.chunks))]

    def _receive_leave(self, now: float, sender: PeerId, leave: wire.Leave) -> list[Effect]:
        assert self._base is not None
        check_signature(leave, leave.peer, self._signer)
        if leave.peer not in self._base.voters:
            return []
        effects = self._matching.receive_leaves(now, [leave])
        if self._attempt is not None:
            effects += self._attempt.lose(now, leave.peer) + self._attempt.recount(now)
        return effects

    def _digest(self, now: float, effects: list[Effect]) -> list[Effect]:
        """Carry out what our own parts tell us; pass on the rest."""
        done: list[Effect] = []
        for effect in effects:
            match effect:
                case Tell(GroupFormed(roster)):
                    others = [join.peer for join in roster.joins if join.peer != self._me]
                    self._late = self._matching.late(roster)
                    done += [Send(peer, roster) for peer in others]
                    done += self._digest(now, self._begin(now, roster))
                case Tell(Decided(certificate, chunks)):
                    done += self._digest(now, self._decide(now, certificate, chunks))
                case Tell(AttemptFailed(reason, attempt)):
                    done += self._digest(now, self._retry(now, reason, attempt))
                case _:
                    done.append(effect)
        return [*done, *self._apply_when_complete()]

    def _retry(self, now: float, reason: str, number: int) -> list[Effect]:
        if self._attempt is None or self._pending is not None:
            return []
        failed, self._attempt = self._attempt.number, None
        aborted = Tell(Aborted(self._base_round + 1, failed, reason))
        return [aborted, *self._matching.enter(now, max(number, failed + 1))]

    def _decide(self, now: float, certificate: wire.Certificate, chunks: tuple[wire.ChunkRef, ...]) -> list[Effect]:
        if self._pending is not None:
            return []
        self._pending = (certificate, chunks)
        self._fetches = 0
        if certificate.ballot.leader != self._me:
            return self._fetch_decided()
        commit = wire.Commit(certificate, chunks)
        others = [peer for peer in (*certificate.proposal.members, *self._late) if peer != self._me]
        return [Send(peer, commit) for peer in others]

    def _fetch_decided(self) -> list[Effect]:
        """Ask the voters of a decided round, in turn, for the bytes that we lack."""
        if self._pending is None:
            return []
        certificate, chunks = self._pending
        holders = [vote.peer for vote in certificate.votes if vote.peer != self._me]
        if not holders:
            return []
        source = holders[self._fetches % len(holders)]
        self._fetches += 1
        round = certificate.proposal.round
        missing = self.shelf.missing(chunks)
        return [self.shelf.fetch(round, self._part, chunk, chunks[chunk].hash, source) for chunk in missing]

    def _apply_when_complete(self) -> list[Effect]:
        if self._pending is None or self.shelf.missing(self._pending[1]):
            return []
        certificate, chunks = self._pending
        decision = Decision(certificate, chunks, self.shelf.collect(chunks))
        self._pending, self._base, self._attempt, self._applying = None, None, None, decision
        self.shelf.decide(decision)
        members = certificate.proposal.members
        place = members.index(self._me) if self._me in members else None
        is_ours = certificate.proposal.attempt >= self._matching.first_attempt  # not of an earlier life
        took_part = self._contribution is not None and place is not None and is_ours
        counted = tuple(took_part and in_mask(ref.mask, place or 0) for ref in chunks)
        return [Tell(Committed(decision, counted))]

    def _keep_ahead(self, sender: PeerId, message: Message) -> list[Effect]:
        """The newest message of each kind from each peer waits until we are where it belongs."""
        if not message.bulk and (len(self._ahead) < MAX_AHEAD or (sender, type(message)) in self._ahead):
            self._ahead[sender, type(message)] = message
        return []

    def _look_ahead(self) -> list[Effect]:
        """Somebody has applied what we have not: ask what we have missed."""
        for peer in self._view.alive():
            status = self._view.status(peer)
            if status is not None and status.round > self._base_round:
                return [Send(peer, wire.Ask(self._base_round + 1, self._part, 0))]
        return []

    @property
    def _base_round(self) -> int:
        assert self._base is not None
        return self._base.round

    def _wake(self) -> Wake:
        return Wake(TICK, Timer("rounds", "tick", self._token, str(self._part)))


def _round_of(message: Message) -> int:
    if isinstance(message, wire.Commit):
        return message.certificate.proposal.round
    round: int = getattr(message, "round")  # noqa: B009 - every message of this table has one
    return round


def _attempt_of(message: Message) -> int:
    match message:
        case wire.Poll() | wire.Promise() | wire.Prepare() | wire.Prepared() | wire.Reassign():
            return message.ballot.attempt
        case wire.Refuse():
            return message.promised.attempt
    number: int = getattr(message, "attempt")  # noqa: B009
    return number
