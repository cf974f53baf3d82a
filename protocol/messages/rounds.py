"""Messages between the members of a round, for matchmaking, all-reduce and commit; and records of its decision.

Every message names its round and part; a `part` is one chain of rounds (a fragment of the model, or the whole).
JOIN, ROSTER, PREPARED and LEAVE are signed, because third parties are shown them.
"""

from __future__ import annotations

from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.wire import Message, Payload, message, value

# -- decisions: values that travel inside messages, and records of votes --------------------------------------


@value
class Ballot:
    """A leader's claim to propose: totally ordered by (attempt, counter, leader), used for one proposal only."""

    attempt: int
    counter: int
    leader: PeerId

    @property
    def order(self) -> tuple[int, int, str]:
        return (self.attempt, self.counter, self.leader)


@value
class ChunkRef:
    """One chunk of a result: the hash of its bytes, and its contributors (bit i: member i of the roster)."""

    hash: Digest
    mask: bytes


@value
class Proposal:
    """The value that a round agrees on. PREPARED signs its digest; `result` is the digest of the ordered ChunkRefs."""

    round: int
    part: int
    attempt: int  # that of the roster it was made with
    base_history: Digest
    base_root: Digest
    result: Digest
    members: tuple[PeerId, ...]  # that roster, in order
    weights: tuple[int, ...]
    voters: tuple[PeerId, ...]  # of the next round: some of `members`, the old voters first
    samples: int  # tokens of the members that are counted in every chunk


@value
class PreparedValue:
    """A proposal that a member has voted for, with its ballot and its chunks."""

    ballot: Ballot
    proposal: Proposal
    chunks: tuple[ChunkRef, ...]


@message(38)
class Leave(Message):
    """The author no longer votes; its last vote is included, as in the answer to a poll."""

    round: int
    part: int
    peer: PeerId
    promised: Ballot
    prepared: PreparedValue | None
    signature: bytes


@value
class Vote:
    """The signature of one PREPARED, as part of a certificate."""

    peer: PeerId
    signature: bytes


@value
class Certificate:
    """Proof that a round committed: PREPARED from quorums of the previous voters and of the new ones."""

    ballot: Ballot
    proposal: Proposal
    votes: tuple[Vote, ...]
    leaves: tuple[Leave, ...]


@message(91)
class VoteRecord(Message):
    """The state that a vote depends on, written to disk before the vote is sent. Never sent itself."""

    round: int
    part: int
    attempt: int  # the last attempt joined
    promised: Ballot
    prepared: PreparedValue | None
    left: int  # the last round from which the author has signed off; 0: none


@message(92)
class Resting(Message):
    """Heads the file of a run at rest, beside the state after `round` (see rest.py). Never sent."""

    round: int
    part: int
    root: Digest


# -- matchmaking, all-reduce, commit --------------------------------------------------------------------------


@message(20)
class Join(Message):
    """`I am ready for this round, at this base, and follow this leader`; a member sends one per (round, attempt).

    It promises to answer no ballot of an earlier attempt, and carries the value that its author has prepared.
    """

    round: int
    part: int
    attempt: int
    leader: PeerId
    peer: PeerId
    base_history: Digest
    base_root: Digest
    weight: int  # tokens behind the contribution
    up: int  # bytes per second that its line carries; 0 = not measured
    down: int
    reachable: bool  # others can send to it without a relay, except those in `apart`
    apart: tuple[PeerId, ...]  # members that it reaches only by relays
    votes: bool  # False: its author has signed off from this round, is back, and only contributes
    prepared: PreparedValue | None
    signature: bytes


@message(21)
class Noted(Message):
    """The leader's answer to a JOIN: it counts, go on waiting."""

    round: int
    part: int
    attempt: int


@message(22)
class Retry(Message):
    """`I have moved on to this attempt`, to a member that is still in an earlier one."""

    round: int
    part: int
    attempt: int


@message(23)
class Call(Message):
    """From the leader to a live member whose JOIN it lacks: hand in what you have, and follow me and no other."""

    round: int
    part: int
    attempt: int


@message(24)
class Roster(Message):
    """The group of an attempt, proven by the JOINs of its members, in order."""

    round: int
    part: int
    attempt: int
    leader: PeerId
    joins: tuple[Join, ...]
    leaves: tuple[Leave, ...]
    signature: bytes


@message(25)
class Contribution(Message):
    """A member's chunk, to the chunk's owner."""

    bulk = True
    round: int
    part: int
    attempt: int
    chunk: int
    epoch: tuple[int, int]
    payload: Payload


@message(26)
class Final(Message):
    """The owner's mean of a chunk, to all members; provisional until PREPARE names its hash."""

    bulk = True
    round: int
    part: int
    attempt: int
    chunk: int
    epoch: tuple[int, int]
    mask: bytes
    payload: Payload


@message(27)
class Want(Message):
    """`These are missing here, send them (again)`: contributions to an owner, results from one."""

    round: int
    part: int
    attempt: int
    contributions: tuple[int, ...]
    results: tuple[int, ...]


@value
class Assignment:
    """A chunk's new owner."""

    chunk: int
    owner: PeerId
    epoch: tuple[int, int]  # (counter of the leader's ballot, sequence number)


@message(28)
class Reassign(Message):
    """The leader gives a lost owner's chunks to others; lower epochs are refused from then on."""

    round: int
    part: int
    ballot: Ballot
    assignments: tuple[Assignment, ...]


@message(29)
class Have(Message):
    """To a chunk's new owner: the old owner has already sent me the mean with this hash; do not compute it again."""

    round: int
    part: int
    attempt: int
    chunk: int
    hash: Digest


@message(32)
class Poll(Message):
    """A new leader of the attempt asks for promises."""

    round: int
    part: int
    ballot: Ballot


@message(33)
class Promise(Message):
    """`I answer no lower ballot`, with the value that its author has prepared."""

    round: int
    part: int
    ballot: Ballot
    prepared: PreparedValue | None


@message(34)
class Prepare(Message):
    """The leader's proposal."""

    round: int
    part: int
    ballot: Ballot
    proposal: Proposal
    chunks: tuple[ChunkRef, ...]


@message(35)
class Prepared(Message):
    """`I hold the bytes of this proposal and answer no lower ballot`: a vote."""

    round: int
    part: int
    ballot: Ballot
    proposal: Digest
    peer: PeerId
    signature: bytes


@message(36)
class Refuse(Message):
    """`I have promised a higher ballot`."""

    round: int
    part: int
    promised: Ballot


@message(37)
class Commit(Message):
    """The round is decided."""

    certificate: Certificate
    chunks: tuple[ChunkRef, ...]


@message(39)
class Ask(Message):
    """`I no longer hear of this round: what have I missed?`"""

    round: int
    part: int
    attempt: int


@message(41)
class CatchUp(Message):
    """`Get the state`: the receiver's round is over and its bytes are gone, or the group stands on another state."""

    round: int
    part: int


# -- payloads asked for by hash, and how far a member is with sending: used by runs of replicas, too ------------


@message(30)
class Fetch(Message):
    """Asks for the chunk with this hash."""

    round: int
    part: int
    chunk: int
    hash: Digest


@message(31)
class Fetched(Message):
    """A chunk's bytes, the answer to Fetch."""

    bulk = True
    round: int
    part: int
    chunk: int
    mask: bytes
    payload: Payload


@message(42)
class Busy(Message):
    """`I am at work`, and how far the sender has come: the answer to a member that has waited."""

    round: int
    part: int
    attempt: int  # 0: about a Fetch, which knows none
    sent: int  # payloads, since the process began
    taken: int
    is_waiting: bool  # the sender has nothing of what was asked for: it needs others first
    is_queued: bool  # some of what was asked for is on its way


ROUND_MESSAGES = (
    Leave
    | Join
    | Noted
    | Retry
    | Call
    | Roster
    | Contribution
    | Final
    | Want
    | Reassign
    | Have
    | Fetch
    | Fetched
    | Poll
    | Promise
    | Prepare
    | Prepared
    | Refuse
    | Commit
    | Ask
    | Busy
    | CatchUp
)
"""All messages about rounds that a member takes from others."""
