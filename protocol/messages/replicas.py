"""What the members of a run of replicas say to each other, beside the chunks, which travel as those of rounds do.

A pairing is named by the sum of both numbers, modulo 2^63: each is drawn afresh for each try of each life, so nothing
that was meant for another pairing counts in this one.
"""

from __future__ import annotations

from enum import IntEnum

from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.wire import Message, message


class Refusal(IntEnum):
    """Why somebody does not meet us."""

    ENGAGED = 1  # it has another partner, or had rather have one
    PAST = 2  # the round is over for it
    ABSENT = 3  # it has no replica, or does not train
    LOST = 4  # it has given us up in this round


@message(44)
class Meet(Message):
    """`I am ready for this round and would exchange with you`. Two that have said so to each other exchange."""

    round: int
    number: int  # of this try
    answers: int  # the number of yours; 0: we have none. Who is answered says no more
    is_urgent: bool  # it has waited for as long as it has patience: hand in what there is


@message(45)
class Decline(Message):
    """`Not with me, in this round`: to a MEET, or to take one back."""

    round: int
    reason: Refusal


@message(46)
class Took(Message):
    """`All your chunks of this pairing are here.`"""

    round: int
    number: int  # of the pairing


@message(47)
class Later(Message):
    """`I am ready, and wait for another that I had rather meet`: to a MEET; its sender goes on waiting."""

    round: int


@message(56)
class GetReplica(Message):
    """Pin a version of your replica for me, of round `least` or later."""

    least: int


@message(57)
class ReplicaIs(Message):
    """The replica of `peer` after `round`: layout and hashes of its chunks. Pinned while chunks are asked for."""

    peer: PeerId
    round: int
    layout: bytes
    chunks: tuple[Digest, ...]
    signature: bytes
