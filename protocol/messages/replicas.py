"""Messages between the members of a run of replicas.

A pairing is named by the sum of both members' numbers, modulo 2^63. Each number is drawn afresh for each try in each
life of a process, so no message that was meant for another pairing counts in this one.
"""

from __future__ import annotations

from enum import IntEnum

from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.wire import Message, Payload, message


class Refusal(IntEnum):
    """Why a member declines to meet another."""

    ENGAGED = 1  # it has another partner, or prefers one
    PAST = 2  # the round is over for it
    ABSENT = 3  # it has no replica, or does not train
    LOST = 4  # it has given the other up in this round


@message(44)
class Meet(Message):
    """`I am ready for this round and would exchange with you`. Two members that have sent it to each other exchange."""

    round: int
    number: int  # of this try
    answers: int  # the number of the MEET that this answers, which needs no further answer; 0: none
    is_urgent: bool  # the sender has waited as long as its patience lasts: hand in what there is
    log: int  # number of the last entry that the sender knows


@message(45)
class Decline(Message):
    """`Not with me, in this round`: the answer to a MEET, or the withdrawal of one."""

    round: int
    reason: Refusal


@message(46)
class Took(Message):
    """`All your chunks of this pairing are here.`"""

    round: int
    number: int  # of the pairing


@message(47)
class Later(Message):
    """`I wait for a partner that I prefer`: the answer to a MEET, whose sender goes on waiting."""

    round: int


@message(43)
class Chunk(Message):
    """A chunk of a member's vector, to its partner."""

    bulk = True
    round: int
    number: int  # of the pairing
    chunk: int
    payload: Payload


@message(48)
class Want(Message):
    """`These chunks of yours are missing here, send them (again)`."""

    round: int
    number: int  # of the pairing
    chunks: tuple[int, ...]


@message(49)
class Busy(Message):
    """`I am at work`, and how far the sender has come: the answer to a member that has waited."""

    round: int
    number: int  # of the pairing
    sent: int  # payloads, since the process began
    taken: int
    is_waiting: bool  # the sender has nothing of what was asked for: it needs others first
    is_queued: bool  # some of what was asked for is on its way


@message(56)
class GetReplica(Message):
    """Asks to pin a version of the receiver's replica, of round `least` or later."""

    least: int


@message(57)
class ReplicaIs(Message):
    """The replica of `peer` after `round`: layout and hashes of its chunks. It is pinned while chunks are asked for."""

    peer: PeerId
    round: int
    layout: bytes
    chunks: tuple[Digest, ...]
    signature: bytes
