"""Messages and values of the agreed log (docs/log.md): entries, what proves them, and how voters decide them.

Signed ones end in `signature`; their author is `peer`, in the life `life` (see signing.py). Bodies, evidence and
records are never sent by themselves: bodies travel within entries as canonical bytes, and evidence within bodies.
"""

from __future__ import annotations

from enum import IntEnum

from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.wire import Message, message, value

# -- who a statement is by ------------------------------------------------------------------------------------


@value
class Member:
    """A member of the run as the register has it."""

    peer: PeerId
    life: int  # milliseconds since 1970 when its vote file was made, so that a later one is larger
    counted: int  # rounds whose result counts it


@value
class Proof:
    """One author's signature under a vote whose other fields stand in a certificate."""

    peer: PeerId
    signature: bytes


# -- evidence: signed statements that make a body fit -----------------------------------------------------------


@message(120)
class Asks(Message):
    """`I want to be a member of this branch`, or, if `leaves`, `I want to be one no more`."""

    branch: Digest
    peer: PeerId
    life: int
    leaves: bool
    signature: bytes


@message(121)
class Unheard(Message):
    """`When `before` was the last entry, I had not heard this life of this peer for long`: a voter says so."""

    branch: Digest
    before: Digest
    absent: PeerId
    absent_life: int
    peer: PeerId
    life: int
    signature: bytes


@message(122)
class Consent(Message):
    """`I hold everything up to the entry `before`, and shall vote`."""

    branch: Digest
    before: Digest
    peer: PeerId
    life: int
    signature: bytes


@message(123)
class Lacks(Message):
    """`When `before` was the last entry, I had not the bytes of this result`: a voter says so."""

    branch: Digest
    before: Digest
    result: int  # number of its entry
    peer: PeerId
    life: int
    signature: bytes


class What(IntEnum):
    """What can be ordered."""

    REMOVE = 1
    VOTE = 2
    END = 3


@message(124)
class Order(Message):
    """What the author, a steward or a voter orders to be done to one life of a peer, or to the run."""

    branch: Digest
    what: What
    subject: PeerId  # "" for the run
    subject_life: int
    peer: PeerId
    life: int  # a voter's; the author's and a steward's does not matter
    signature: bytes


@message(137)
class Stays(Message):
    """`I hold everything up to the entry `before`, after which nothing can be decided, and go on with this founder`."""

    branch: Digest
    before: Digest
    founder: PeerId  # of the branch
    standing: int  # one more than the round after which the state is that is here; 0: none is
    has_waited: int  # 1: for as long as the manifest says, or was told to go on; 0: goes along with somebody who has
    bound: bytes  # of the founder: the body that must be decided next, and that all who stay are too few for; or empty
    peer: PeerId
    life: int
    signature: bytes


# -- bodies of entries ------------------------------------------------------------------------------------------


@message(125)
class Admit(Message):
    """These peers are members."""

    asks: tuple[Asks, ...]


@message(126)
class Leave(Message):
    """Who asks for it is a member no more."""

    asks: Asks


@message(127)
class Remove(Message):
    """One who does not answer is a member no more: by a quorum of statements, or by an order."""

    peer: PeerId
    life: int
    unheard: tuple[Unheard, ...]
    orders: tuple[Order, ...]


@message(128)
class AddVoters(Message):
    """These members vote from the next entry on, in this order behind the others."""

    consents: tuple[Consent, ...]
    orders: tuple[Order, ...]  # for those that have not been counted often enough


@value
class Seat:
    """A member in a roster, and how many of the chunks it owns, in proportion to the others' shares."""

    peer: PeerId
    share: int


@message(129)
class Roster(Message):
    """Who takes part in the rounds of a part, until another entry says otherwise: those who do already, then others."""

    part: int
    seats: tuple[Seat, ...]


@message(130)
class Result(Message):
    """The result of a round: what is averaged, of whom, on which state. The bytes are named by their digest."""

    part: int
    round: int
    base: int  # number of the entry with the result that it was made on; 0: the run's first state
    base_root: Digest  # of that state
    table: Digest  # of the table of chunks: each chunk's hash, epoch, mask and owner's signature
    counted: bytes  # a mask over the roster: those who are in every chunk
    weights: tuple[int, ...]  # of these, in tokens
    roster: tuple[Seat, ...]  # of the next round; empty: as before, without those who are gone


@message(131)
class Void(Message):
    """The last result of a part does not count, since a quorum has lost its bytes."""

    part: int
    lacks: tuple[Lacks, ...]


@message(132)
class End(Message):
    """The run is over: ordered, or because its last round is decided."""

    orders: tuple[Order, ...]


@message(138)
class Found(Message):
    """The run goes on as a branch of its log, with these members alone, since no quorum of its voters could be reached.

    No votes decide it but the statements themselves, of all whom it names.
    """

    stays: tuple[Stays, ...]


@message(139)
class Yield(Message):
    """This branch ends, as another one has more tokens behind its states."""

    branch: Digest  # the other one
    tokens: int


BODY_TAGS = (*range(125, 133), 138, 139)


@value
class Entry:
    """One entry of the log."""

    branch: Digest
    number: int
    before: Digest  # of the entry before; for the first, the run's id
    body: bytes


# -- votes --------------------------------------------------------------------------------------------------------


class Phase(IntEnum):
    """What a vote says: `no other entry in this view`, or `decided, as far as I am asked`."""

    PREPARE = 1
    COMMIT = 2


@value
class Subject:
    """What is voted on: an entry, and all on which its meaning depends."""

    branch: Digest
    number: int
    view: int
    phase: Phase
    before: Digest
    entry: Digest
    register: Digest  # root after the entry
    voters: Digest  # root of those who decide
    voters_after: Digest  # and of those who decide the next entry


@message(10)
class Vote(Message):
    """A vote, to all voters before and after the entry."""

    subject: Subject
    peer: PeerId
    life: int
    signature: bytes


@value
class Certificate:
    """Votes of a quorum on one subject; the lives are those of the register before it."""

    subject: Subject
    proofs: tuple[Proof, ...]


@value
class Voter:
    """Who votes, in which life."""

    peer: PeerId
    life: int


@value
class Electorate:
    """Those who decide some entries: what a `Subject` names by its root."""

    since: int  # number of the entry that made them voters
    faults: int
    voters: tuple[Voter, ...]


@value
class Header:
    """That an entry was decided, and by whom: enough for one who lacks the entries before it."""

    certificate: Certificate
    electorate: Electorate  # those who decided
    after: Electorate | None  # those who decide the next entry, where it made others voters


@value
class Lock:
    """What a voter must not forget of a number: the entry that may have been decided in this view."""

    view: int
    entry: Entry
    certificate: Certificate | None  # of prepares, where there is such a phase


@message(11)
class ChangeView(Message):
    """`I vote in no view below this one, on this number or a later one of these voters`; to all voters."""

    branch: Digest
    number: int
    view: int
    voters: Digest
    lock: Lock | None  # of this number
    peer: PeerId
    life: int
    signature: bytes


@message(12)
class Propose(Message):
    """The proposer's entry, to all who vote on it."""

    view: int
    entry: Entry
    is_bound: bool  # it may have been decided in an earlier view, so the proposer had no choice
    grounds: tuple[ChangeView, ...]
    peer: PeerId
    life: int
    signature: bytes


@message(13)
class Request(Message):
    """A body that the sender, whose log ends with this number, wants decided; to all voters."""

    branch: Digest
    number: int
    body: bytes


@message(14)
class Decided(Message):
    """An entry with its proof."""

    entry: Entry
    certificate: Certificate


@message(15)
class GetLog(Message):
    """`My log ends with this number: what comes after it?` The answer is a `Tip`."""

    branch: Digest
    number: int


@message(16)
class Tip(Message):
    """`My log ends with this number`, and to one who is behind the entries after the end of its own, or the first."""

    branch: Digest
    number: int
    entries: tuple[Decided, ...]
    stays: bool = False  # as in Shortcut


@message(17)
class Statement(Message):
    """What its author says to all whom it concerns, so that enough of such can be shown: evidence, signed."""

    branch: Digest
    number: int  # of the last entry in its author's log
    body: bytes


STATEMENT_TAGS = (*range(121, 125), 137)


LogMessage = Vote | ChangeView | Propose | Request | Decided | GetLog | Tip


# -- on disk ------------------------------------------------------------------------------------------------------


@value
class Voted:
    """The last vote: in this view and phase, for this entry."""

    view: int
    phase: Phase
    entry: Entry


@message(133)
class VoteFile(Message):
    """What a voter must not forget over a crash, beside the log."""

    life: int
    voters: Digest  # `view` is counted since these vote
    view: int
    number: int  # on which it has voted, or holds a lock; at most one above the log
    voted: Voted | None
    lock: Lock | None


@value
class PartState:
    """Where a part of the model stands."""

    part: int
    roster: tuple[Seat, ...]
    round: int  # the last one that is over
    result: int  # number of the entry with its last result; 0: none
    before: int  # number of the one before; to which `Void` goes back
    root: Digest  # of the state that the last result was made on, or the run began with
    table: Digest  # of the last result
    history: Digest  # of all results, in order
    tokens: int  # of all results
    last_tokens: int  # of the last one
    voided: int  # tokens of results that were undone
    last_history: Digest  # before the last one


@value
class Gone:
    """A member that is none any more; `left`: by its own wish, so it may go on if those who stayed are lost."""

    peer: PeerId
    life: int
    left: bool


@value
class Stem:
    """A branch of which another one is a branch."""

    branch: Digest
    end: int  # number of the entry that founds the other one


@message(134)
class Register(Message):
    """What the log says in sum (see protocol/log/register.py)."""

    branch: Digest
    earlier: tuple[Stem, ...]  # branches of which this one is a branch, the last ones, the newest last
    yields_to: Digest  # the branch for which this one has ended; NO_DIGEST: it goes on
    number: int  # of the last entry
    tips: tuple[Digest, ...]  # digests of the last entries, the newest last; before the first, the run's id
    author: PeerId
    stewards: tuple[PeerId, ...]
    most_faults: int  # liars that are tolerated at most
    faults: int  # liars that are tolerated among these voters
    most_voters: int
    rounds_to_vote: int  # in which a member must have been counted before it may vote
    last_round: int  # 0: the run has none
    part_count: int
    members: tuple[Member, ...]
    voters: tuple[PeerId, ...]  # members, who became a voter first stands first
    voters_since: int  # number of the entry that made them voters
    gone: tuple[Gone, ...]  # the last ones, the newest last
    parts: tuple[PartState, ...]
    is_over: bool

    @property
    def tip(self) -> Digest:
        """Digest of the last entry."""
        return self.tips[-1]


@value
class Crossing:
    """From one branch to the next."""

    headers: tuple[Header, ...]  # on earlier ones, from voters that are known to those who decided their last entry
    register: Register  # after that entry
    entry: Entry  # that founds the next branch
    rest: Digest | None = None  # what stands for what is left out of the register; None: nothing is


@value
class Way:
    """How one gets from the run's founder to a register without the entries between."""

    crossings: tuple[Crossing, ...]
    headers: tuple[Header, ...]  # on the last branch; none, if the register is that with which the branch begins


@message(18)
class Shortcut(Message):
    """To one who lacks entries that are no longer kept: the register after one of the last, and what certifies it."""

    branch: Digest  # on which its sender is
    tokens: int  # behind all results that its log has decided, undone ones among them
    can_decide: bool  # as it sees who is there
    way: Way
    register: Register  # of that branch or an earlier one
    stays: bool = False  # its sender holds the state of its branch, and does not leave that for STAYING seconds


@message(19)
class Met(Message):
    """To the other voters, who are to vote on it: our branch has met this one, which `peer` has shown."""

    branch: Digest  # on which its sender is
    peer: PeerId
    shortcut: Shortcut


KeeperMessage = LogMessage | Statement | Shortcut | Met
"""All that is sent about the log; what is no LogMessage is not for the core."""


@message(136)
class Switch(Message):
    """To the journal: go on from `beginning`, on another branch, with these votes. Never sent."""

    beginning: Shortcut
    votes: VoteFile
