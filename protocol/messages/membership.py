"""Membership (SWIM): probes, the news that they carry, and the exchange of summaries that repairs lost gossip.

Every message begins with the sender's own signed entry, so a newcomer is introduced by its first message. What a
member says of itself (addresses, incarnation, status, goodbye) is signed, so others cannot forge it. A claim that a
member does not answer is unsigned: anybody can make it, and a higher incarnation refutes it.
"""

from __future__ import annotations

from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.wire import Message, message, value


@value
class RunStatus:
    """A member's standing in a run. `round`, `history` and `root` are those of its last applied commit."""

    round: int
    history: Digest
    root: Digest
    phase: str  # "syncing" | "training" | "matching" | "reducing" | "deciding" | "waiting"
    step: int  # inner steps done in this round
    samples: int  # tokens behind the committed state
    loss: float | None  # training loss, mean over the last few inner steps
    trains: bool  # False: a member of weight 0 that keeps state and votes
    up: int  # bytes per second that this member's line carries away from it, 0 = not measured yet
    down: int  # and towards it
    reachability: str  # "public" | "nat" | "unknown"


@message(90)
class Entry(Message):
    """A member's description of itself. The later of two entries has the higher (incarnation, version)."""

    peer: PeerId
    incarnation: int  # raised by the member alone, to refute a claim about it
    version: int  # raised with every change of the fields below
    addresses: tuple[str, ...]
    status: RunStatus
    left: bool  # its goodbye
    signature: bytes


@value
class Claim:
    """`accuser` says that `peer`, in this incarnation, does not answer (suspect) or is dead."""

    peer: PeerId
    incarnation: int
    dead: bool
    accuser: PeerId


@value
class News:
    """News that travel with other messages: the latest entries and claims, freshest first."""

    entries: tuple[Entry, ...]
    claims: tuple[Claim, ...]


@value
class Row:
    """One member as the sender of a summary knows it."""

    peer: PeerId
    incarnation: int
    version: int
    dead: bool


@message(2)
class Ping(Message):
    """Asks whether the receiver is alive; answered by Ack."""

    entry: Entry
    number: int
    news: News


@message(3)
class Ack(Message):
    """The answer to Ping `number`."""

    entry: Entry
    number: int
    news: News


@message(4)
class PingFor(Message):
    """Asks the receiver to ping `target`, which does not answer the sender."""

    entry: Entry
    number: int
    target: PeerId
    news: News


@message(5)
class AckFor(Message):
    """The answer to PingFor `number`: the target's entry if it answered, None if it did not in time."""

    entry: Entry
    number: int
    answer: Entry | None
    news: News


@message(6)
class Gossip(Message):
    """News that do not wait for the next probe; or the answer to a Summary, with `pass_on` False."""

    entry: Entry
    news: News
    pass_on: bool


@message(7)
class Summary(Message):
    """The versions of all entries that the sender holds. Answered by later ones (Gossip) and, if `ask`, a Summary."""

    entry: Entry
    rows: tuple[Row, ...]
    ask: bool


MEMBERSHIP_MESSAGES = Ping | Ack | PingFor | AckFor | Gossip | Summary
"""All messages that membership takes from other members."""
