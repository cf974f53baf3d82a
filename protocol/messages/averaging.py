"""Messages by which the members of a round average: contributions to owners, means back, and asking for either.

Every message names its round and part, and no two rounds of a part have the same number. Nothing is agreed on by these
messages: what a round has decided stands in the log (log.py), which names a table of means by its digest.
"""

from __future__ import annotations

from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.wire import Message, Payload, message, value


@message(140)
class Offer(Message):
    """`I am ready for this round, on this state`: to the owners of its chunks, and to all voters."""

    branch: Digest
    part: int
    round: int
    number: int  # of the last entry in its author's log
    base_root: Digest  # of the state that it stands on
    weight: int  # tokens behind the contribution; 0: there is none
    up: int  # bytes per second that its line carries; 0: not measured
    down: int
    reachable: bool  # others can send to it without a relay, except those in `apart`
    apart: tuple[PeerId, ...]  # members that it reaches only by relays
    peer: PeerId
    life: int
    signature: bytes


@message(141)
class Contribution(Message):
    """A member's part of a chunk, to the chunk's owner in this epoch; its bytes are the same for every owner."""

    bulk = True
    part: int
    round: int
    chunk: int
    epoch: int
    weight: int
    base_root: Digest  # of the state that it was trained from
    payload: Payload


@message(135)
class MeanIs(Message):
    """What an owner says of the mean that it has made of a chunk: signed, never sent by itself."""

    branch: Digest
    part: int
    round: int
    chunk: int
    epoch: int
    base_root: Digest  # of the state that it was made on
    hash: Digest  # of mask and payload
    peer: PeerId
    life: int
    signature: bytes


@value
class Made:
    """One chunk of a result: who is in it, the hash of mask and bytes, and its owner's word for that."""

    hash: Digest
    mask: bytes  # over the round's roster (base/masks.py)
    epoch: int
    owner: PeerId
    life: int
    signature: bytes  # under `MeanIs`

    @property
    def count(self) -> int:
        """How many contributions are in it."""
        return int.from_bytes(self.mask, "little").bit_count()


@message(143)
class Mean(Message):
    """The mean of a chunk, from its owner to all, or from anybody to whoever asks."""

    bulk = True
    part: int
    round: int
    chunk: int
    made: Made
    payload: Payload


@message(144)
class Give(Message):
    """`Send me (again)`: contributions to chunks of mine, means, and means by their hashes."""

    part: int
    round: int
    contributions: tuple[int, ...]  # chunks
    means: tuple[int, ...]  # chunks
    hashes: tuple[tuple[int, Digest], ...]  # chunk and hash


@message(145)
class Have(Message):
    """To a chunk's new owner: the old one has sent me its mean, with this hash; do not compute it again."""

    part: int
    round: int
    chunk: int
    hash: Digest


@message(146)
class Direct(Message):
    """From the proposer: whom to go on without, and the epochs of chunks whose owners were lost. All, each time.

    From others to whoever seems not to know, perhaps because it was restarted: some of the epochs.
    """

    part: int
    round: int
    absent: tuple[PeerId, ...]
    epochs: tuple[tuple[int, int], ...]  # chunk and epoch; others are in epoch 0


@message(147)
class Call(Message):
    """From the proposer to those who still train: `the others wait, contribute what there is`."""

    part: int
    round: int


@message(148)
class GetTable(Message):
    """Asks for the table of means with this digest, which an entry of the log names."""

    part: int
    round: int
    table: Digest


@message(149)
class Table(Message):
    """The means of a whole result, in order."""

    part: int
    round: int
    means: tuple[Made, ...]


@message(150)
class Progress(Message):
    """`I am at work`, and how far the sender has come: the answer to a member that has waited."""

    part: int
    round: int
    sent: int  # payloads, since the process began
    taken: int
    is_waiting: bool  # it has nothing of what was asked for: it needs others first
    is_queued: bool  # some of what was asked for is on its way


AVERAGING_MESSAGES = Offer | Contribution | Mean | Give | Have | Direct | Call | GetTable | Table | Progress
"""All that a member takes from others about its rounds."""
