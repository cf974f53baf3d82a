"""The messages between the daemon and a process that asks or answers, over the proxy's Unix socket.

    process  Offer    ->                     the files that it answers for; again whenever they change
    process  Meet     ->  Met | Failure      connect with a peer
    process  Dial     ->  Answer | Failure   ask a peer
    daemon   Asked    ->  Answer | Failure   a peer's question to the process
    daemon   Lost     ->                     a peer is not connected any more

Bodies are encoded messages of protocol/messages/experts.py. The asking side chooses the numbers.
"""

from __future__ import annotations

import asyncio
from enum import IntEnum

from shoal.protocol.base.errors import LocalError, RemoteError, ShoalError, TransportError
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.wire import Message, decode, encode, message
from shoal.protocol.messages.experts import AskExpert

PREFIX = 4  # bytes of a frame's length
MAX_FRAME = (4 << 20) + 4096
# The most that one question may ask.
STEP = 1024  # tokens
TEXTS = 256
ENDED = 4096
LATER = 50  # milliseconds until a peer that was told to come later asks again


def check_size(peer: PeerId, asked: AskExpert) -> None:
    """RemoteError if a question is too large."""
    tokens = sum(len(each.tokens) for each in asked.additions)
    if tokens > STEP or len(asked.additions) > TEXTS or len(asked.ended) > ENDED:
        raise RemoteError(f"asks about over {STEP} tokens or {TEXTS} texts at once", peer)


class Blame(IntEnum):
    """Whose fault a failure is."""

    OURS = 0
    PEERS = 1
    NETWORKS = 2


@message(260)
class Offer(Message):
    """See above."""

    files: tuple[Digest, ...]


@message(261)
class Dial(Message):
    """See above."""

    number: int
    peer: PeerId
    milliseconds: int  # that the answer may take
    body: bytes


@message(262)
class Asked(Message):
    """See above."""

    number: int
    peer: PeerId
    body: bytes


@message(263)
class Answer(Message):
    """The answer to the question of that number."""

    number: int
    body: bytes


@message(264)
class Failure(Message):
    """Why there is no answer to the question of that number."""

    number: int
    blame: Blame
    reason: str
    code: str  # of a TransportError; else empty


@message(265)
class Lost(Message):
    """See above."""

    peer: PeerId


@message(266)
class Meet(Message):
    """See above."""

    number: int
    peer: PeerId
    milliseconds: int  # that connecting may take


@message(267)
class Met(Message):
    """The peer is connected, until a Lost names it."""

    number: int


async def receive(reader: asyncio.StreamReader) -> Message:
    """The next message; EOFError if the other end is gone, RemoteError if the message is invalid."""
    size = int.from_bytes(await reader.readexactly(PREFIX), "big")
    if size > MAX_FRAME:
        raise RemoteError(f"frame of {size} bytes is over the limit of {MAX_FRAME}")
    return decode(await reader.readexactly(size))


def send(writer: asyncio.StreamWriter, message: Message) -> None:
    """Queue a message; that the other end is gone is noticed by `receive`."""
    body = encode(message)
    writer.write(len(body).to_bytes(PREFIX, "big") + body)


def failure(number: int, error: Exception) -> Failure:
    """An error as a message for the other end."""
    kinds = {RemoteError: Blame.PEERS, TransportError: Blame.NETWORKS}
    blame = next((each for kind, each in kinds.items() if isinstance(error, kind)), Blame.OURS)
    words = str(error) if isinstance(error, ShoalError) else f"{type(error).__name__}; the log has the details"
    return Failure(number, blame, words[:400], error.code if isinstance(error, TransportError) else "")


def error_of(failure: Failure, peer: PeerId) -> ShoalError:
    """The error that a Failure stands for, at the other end."""
    if failure.blame is Blame.PEERS:
        return RemoteError(failure.reason.removeprefix(f"peer {peer}: "), peer)
    if failure.blame is Blame.NETWORKS:
        return TransportError(failure.reason, failure.code)
    return LocalError(failure.reason)
