"""Calls by which two peers tell each other how they are connected, and find out how fast that is (`shoal doctor`).

A peer is told only what concerns itself: where it was dialled, how, and with what result, as a code. Times, and the
words of machines on the way, would show more of a network than the asker can see.
"""

from __future__ import annotations

from shoal.protocol.base.wire import Message, message, value


@value
class Tried:
    """Something that was tried towards the one that asks; see shoal.protocol.net.measure.journal."""

    way: str
    where: str
    code: str
    ago: int  # milliseconds since it ended, the last time
    times: int


@message(86)
class HowAmISeen(Message):
    """Call: how are you connected with me, and what have you tried?"""


@message(87)
class Seen(Message):
    """Answer: the connections with the one that asked, why they are so, and what the one that answers is behind."""

    addresses: tuple[str, ...]  # where the connections with the asker lead
    path: str
    reason: str  # a code of shoal.protocol.net.measure.link
    trip: int  # microseconds; 0: not measured
    reachability: str
    nat: str
    relays: int  # that connect others with the one that answers
    tried: tuple[Tried, ...]


@message(88)
class Carry(Message):
    """Call: take this, and send me so many bytes, to measure how fast they come. May be answered by Later."""

    content: bytes
    wanted: int


@message(89)
class Carried(Message):
    """Answer: the bytes that were wanted."""

    content: bytes
