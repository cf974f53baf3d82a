"""Calls by which two peers tell each other how they are connected, and find out how fast that is (`shoal doctor`).

A peer is told only about itself: where it was dialled, how, and with what result, as a code. Absolute times, and error
texts of machines on the way, would show more of a network than the asker can see.
"""

from __future__ import annotations

from shoal.protocol.base.wire import Message, message, value


@value
class Tried:
    """An attempt to connect with the asker; see shoal.protocol.net.measure.journal."""

    way: str
    where: str
    code: str
    ago: int  # milliseconds since the last time ended
    times: int


@message(86)
class HowAmISeen(Message):
    """Call: how are you connected with me, and what have you tried to connect?"""


@message(87)
class Seen(Message):
    """Answer: the connections with the asker, why they are so, and the reachability of the answering node."""

    addresses: tuple[str, ...]  # of the asker, in the connections with it
    path: str
    reason: str  # a code of shoal.protocol.net.measure.link
    trip: int  # round trip in microseconds; 0: not measured
    reachability: str
    nat: str
    relays: int  # that connect others with the answering node
    tried: tuple[Tried, ...]


@message(88)
class Carry(Message):
    """Call: receive these bytes and send `wanted` bytes back, to measure the rate. May be answered by Later."""

    content: bytes
    wanted: int


@message(89)
class Carried(Message):
    """Answer to Carry: the wanted bytes."""

    content: bytes
