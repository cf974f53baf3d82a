"""What the members of a round say to each other: matchmaking, all-reduce, commit.

Every message names its round and part; a `part` is one chain of rounds (a fragment of the model, or the whole).
JOIN, ROSTER, PREPARED and LEAVE are signed, because third parties are shown them.
"""

from __future__ import annotations

from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.wire import Message, Payload, message, value
from shoal.protocol.messages.decision import (
    Ballot as Ballot,
)
from shoal.protocol.messages.decision import (
    Certificate as Certificate,
)
from shoal.protocol.messages.decision import (
    ChunkRef as ChunkRef,
)
from shoal.protocol.messages.decision import (
    Leave as Leave,
)
from shoal.protocol.messages.decision import (
    PreparedValue as PreparedValue,
)
from shoal.protocol.messages.decision import (
    Proposal as Proposal,
)
from shoal.protocol.messages.decision import (
    Vote as Vote,
)
from shoal.protocol.messages.decision import (
    VoteRecord as VoteRecord,
)
from shoal.protocol.messages.payloads import Busy as Busy
from shoal.protocol.messages.payloads import Fetch as Fetch
from shoal.protocol.messages.payloads import Fetched as Fetched


@message(20)
class Join(Message):
    """`I am ready for this round, at this base, and follow this leader`; one per (round, attempt).

    It promises to answer no ballot of an earlier attempt, and carries what its author has prepared.
    """

    round: int
    part: int
    attempt: int
    leader: PeerId
    peer: PeerId
    base_history: Digest
    base_root: Digest
    weight: int  # tokens behind the contribution
    up: int  # what its line carries, in bytes per second; 0 = not measured
    down: int
    reachable: bool  # others can send to it without a relay, but for those whom it names:
    apart: tuple[PeerId, ...]  # members that it reaches by relays alone
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
    """`I have moved on to this attempt`, to somebody who is still in an earlier one."""

    round: int
    part: int
    attempt: int


@message(23)
class Call(Message):
    """The leader to a live member whose JOIN it lacks: hand in what you have, and follow me, not another."""

    round: int
    part: int
    attempt: int


@message(24)
class Roster(Message):
    """The group of an attempt, proven by its members' own JOINs, in order."""

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
    """The owner's mean of a chunk, to everyone; provisional until PREPARE names its hash."""

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
    """To a chunk's new owner: do not compute it again, this is what the old owner gave me."""

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
    """`I answer no lower ballot`, and what its author has prepared."""

    round: int
    part: int
    ballot: Ballot
    prepared: PreparedValue | None


@message(34)
class Prepare(Message):
    """The leader proposes."""

    round: int
    part: int
    ballot: Ballot
    proposal: Proposal
    chunks: tuple[ChunkRef, ...]


@message(35)
class Prepared(Message):
    """`I hold these very bytes and answer no lower ballot`: a vote."""

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
    """`I hear nothing of this round any more: what have I missed?`"""

    round: int
    part: int
    attempt: int


@message(41)
class CatchUp(Message):
    """`Get the state`: your round is over and its bytes are gone, or the group stands on another state than you."""

    round: int
    part: int


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
"""All that a member takes from others about rounds."""
