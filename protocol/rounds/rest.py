"""A run at rest: what a voter keeps beside a state when it stops, so that the run goes on even if all have stopped.

    state of round S      lies elsewhere: it is tensors to some, and facts to others
    chain                 the certificates from the run's first round to now, for those who have to catch up
    decisions             the rounds after S with their bytes: a state is certified by the round built on it, so with
                          them others can download S, and follow
    leaves                of those who have signed off: they may never come back to say it again
    draft                 the bytes of what we have voted for in the round that is open: it may be decided already

A Rest is a row of messages to the shell, which writes them to a file, and reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import Digest, result_hash
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.rounds import Certificate, Commit, Fetched, Leave, Proposal, Resting
from shoal.protocol.messages.transfer import Chain
from shoal.protocol.rounds.agreement.history import LINKS_PER_MESSAGE
from shoal.protocol.rounds.agreement.voting import VoteState
from shoal.protocol.rounds.allreduce.shelf import Decision, Shelf
from shoal.protocol.rounds.matchmaking.leaving import Goodbyes


@dataclass(frozen=True, slots=True)
class Rest:
    """All of it but the state, which is that after `round`."""

    round: int
    root: Digest
    chain: tuple[Certificate, ...]
    decisions: tuple[Decision, ...]
    leaves: tuple[Leave, ...]
    draft: tuple[Fetched, ...]

    @property
    def origin(self) -> tuple[int, Digest]:
        """What the run began with: a round, and the root of its state."""
        if not self.chain:
            return self.round, self.root
        first = self.chain[0].proposal
        return first.round - 1, first.base_root

    @property
    def newest(self) -> int:
        """The last round that is decided."""
        return self.chain[-1].proposal.round if self.chain else self.round

    @property
    def made_by(self) -> Proposal | None:
        """What was decided in the state's round; None: the run began with it."""
        return next((each.proposal for each in self.chain if each.proposal.round == self.round), None)

    def messages(self, part: int) -> Iterator[Message]:
        """What is to be written, in order."""
        yield Resting(self.round, part, self.root)
        for start in range(0, len(self.chain), LINKS_PER_MESSAGE):
            yield Chain(part, self.chain[start : start + LINKS_PER_MESSAGE], len(self.chain))
        for decision in self.decisions:
            yield Commit(decision.certificate, decision.chunks)
            for chunk, (ref, payload) in enumerate(zip(decision.chunks, decision.payloads, strict=True)):
                yield Fetched(decision.round, part, chunk, ref.mask, payload)
        yield from self.leaves
        yield from self.draft

    @classmethod
    def of(cls, messages: Iterable[Message]) -> Rest:
        """What was written; LocalError unless it is whole."""
        found = _Sorted()
        for message in messages:
            found.add(message)
        if found.head is None:
            raise LocalError("it does not say of which state it is", code="record-damaged")
        first, last = found.chain[0].proposal.round, found.chain[-1].proposal.round
        if [link.proposal.round for link in found.chain] != list(range(first, last + 1)):
            raise LocalError("its chain of rounds has a gap", code="record-damaged")
        if not first - 1 <= found.head.round <= last:
            raise LocalError(
                f"its chain does not lead to round {found.head.round}, whose state it names", code="record-damaged"
            )
        decisions = tuple(found.decision(commit) for commit in found.commits)
        newest = max((decision.round for decision in decisions), default=0)
        draft = tuple(each for each in found.fetched if each.round > newest)
        return cls(found.head.round, found.head.root, tuple(found.chain), decisions, tuple(found.leaves), draft)


@dataclass(slots=True)
class _Sorted:
    """Messages by their kinds."""

    head: Resting | None = None
    chain: list[Certificate] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    leaves: list[Leave] = field(default_factory=list)
    fetched: list[Fetched] = field(default_factory=list)

    def add(self, message: Message) -> None:
        match message:
            case Resting():
                self.head = message
            case Chain(certificates=certificates):
                self.chain += certificates
            case Commit():
                self.commits.append(message)
            case Leave():
                self.leaves.append(message)
            case Fetched():
                self.fetched.append(message)
            case _:
                raise LocalError(f"it holds a {type(message).__name__}", code="record-damaged")

    def decision(self, commit: Commit) -> Decision:
        """A decided round with its bytes; LocalError if some are missing, or others."""
        round = commit.certificate.proposal.round
        mine = [each for each in self.fetched if each.round == round]
        if [result_hash(each.mask, each.payload) for each in mine] != [ref.hash for ref in commit.chunks]:
            raise LocalError(f"it does not hold the bytes of round {round}", code="record-damaged")
        return Decision(commit.certificate, commit.chunks, tuple(each.payload for each in mine))


def draft_of(shelf: Shelf, vote: VoteState | None) -> tuple[Fetched, ...]:
    """The bytes of what `vote` is for, if it is for anything and they are here."""
    if vote is None or vote.prepared is None or shelf.missing(vote.prepared.chunks):
        return ()
    chunks = vote.prepared.chunks
    return tuple(
        Fetched(vote.round, vote.part, chunk, ref.mask, payload)
        for chunk, (ref, payload) in enumerate(zip(chunks, shelf.collect(chunks), strict=True))
    )


def recall(rest: Rest | None, shelf: Shelf, goodbyes: Goodbyes) -> tuple[Fetched, ...]:
    """Take up what was kept: decisions and LEAVEs go where they were. The draft is for when its round is open."""
    if rest is None:
        return ()
    for decision in rest.decisions:
        shelf.decide(decision)
    for leave in rest.leaves:
        goodbyes.keep(leave)
    return rest.draft


def put_back(draft: tuple[Fetched, ...], round: int, shelf: Shelf) -> tuple[Fetched, ...]:
    """`round` is opened: if the draft is of it, its bytes are held again. Returned is what may still be needed."""
    for each in draft:
        if each.round == round:
            shelf.put(each.chunk, result_hash(each.mask, each.payload), each.mask, each.payload)
    return tuple(each for each in draft if each.round >= round)
