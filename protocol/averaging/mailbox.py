"""Messages that came too soon, kept until we are where they belong. Bounded in bytes, whoever sends what.

Rules:
- Those who vote on the round have a budget of their own, so that strangers never crowd them out.
- When a budget is used up, whoever has most in it loses its latest; so a sender that keeps to an equal share of it
  loses nothing, whatever the others send.
- Of each chunk of a round the newest bytes are kept; of everything else the last few messages of each sender, in order.
- What is dropped is not lost for good: bytes are asked for again, an offer is repeated, the silent are reminded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from shoal.protocol.base.effects import Blamed, Effect, Tell
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.wire import Message, encode, payload_memory
from shoal.protocol.messages.averaging import Contribution, Mean

MAX_STRANGERS = 1024  # senders that do not vote
MAX_WORDS = 16  # messages without a payload, from each sender
VOTERS_BYTES, STRANGERS_BYTES = 224 << 20, 32 << 20
OVERHEAD = 512  # bytes in memory that come with each message

Chunk = Contribution | Mean


class Mailbox:
    """Mail for later; `voters` are sure of their place in it."""

    def __init__(self, voters: Collection[PeerId]) -> None:
        self._open(voters)

    def _open(self, voters: Collection[PeerId]) -> None:
        self._voters = frozenset(voters)
        self._of_voters = _Rack(VOTERS_BYTES, len(self._voters))
        self._of_strangers = _Rack(STRANGERS_BYTES, MAX_STRANGERS)

    def __repr__(self) -> str:
        return f"Mailbox(voters={self._of_voters}, strangers={self._of_strangers})"

    def keep(self, sender: PeerId, message: Message) -> None:
        """Put a message aside; those with a payload that is of no use later are dropped."""
        rack = self._of_voters if sender in self._voters else self._of_strangers
        if isinstance(message, Chunk) or not message.bulk:
            rack.put(sender, message)

    @property
    def has_means(self) -> bool:
        """Whether there may be any."""
        return self._of_voters.has_chunks or self._of_strangers.has_chunks

    def take_means(self, round: int, wanted: Collection[tuple[int, Digest]]) -> list[tuple[PeerId, Mean]]:
        """Means of a round, by chunk and hash, with their senders; they are not here any more."""
        return [*self._of_voters.take_means(round, wanted), *self._of_strangers.take_means(round, wanted)]

    def empty(self, voters: Collection[PeerId]) -> list[tuple[PeerId, Message]]:
        """All that was kept, what steers the work before the bytes that it needs, and voters before strangers.

        None of it is here any more, and from now on these are the voters.
        """
        boxes = [*self._of_voters.boxes(), *self._of_strangers.boxes()]
        self._open(voters)
        words = [(peer, message) for peer, box in boxes for message in box.words]
        return [*words, *((peer, message) for peer, box in boxes for message in box.chunks.values())]


class _Box:
    """The mail of one sender, oldest first."""

    def __init__(self) -> None:
        self.words: dict[Message, int] = {}  # with their sizes
        self.chunks: dict[tuple[type[Chunk], int, int], Chunk] = {}  # by kind, round and chunk
        self.size = 0

    def put(self, message: Message) -> None:
        """Add a message at the end; it may replace another."""
        if isinstance(message, Chunk):
            key = type(message), message.round, message.chunk
            if key in self.chunks:
                self.size -= _size(self.chunks.pop(key))
            self.chunks[key] = message
            self.size += _size(message)
        elif message not in self.words:
            self.words[message] = _size(message)
            self.size += self.words[message]
            if len(self.words) > MAX_WORDS:
                self.size -= self.words.pop(next(iter(self.words)))

    def take_means(self, round: int, wanted: Collection[tuple[int, Digest]]) -> list[Mean]:
        """See `Mailbox.take_means`."""
        means = [each for each in self.chunks.values() if isinstance(each, Mean) and each.round == round]
        found = [mean for mean in means if (mean.chunk, mean.made.hash) in wanted]
        for mean in found:
            self.size -= _size(self.chunks.pop((Mean, mean.round, mean.chunk)))
        return found

    def drop_latest(self) -> None:
        """Bytes go before words, which are few."""
        self.size -= _size(self.chunks.popitem()[1]) if self.chunks else self.words.popitem()[1]


class _Rack:
    """The boxes of several senders under one budget."""

    def __init__(self, budget: int, places: int) -> None:
        self._budget, self._places = budget, places
        self._boxes: dict[PeerId, _Box] = {}
        self._size = 0

    def __repr__(self) -> str:
        return f"{self._size} bytes of {len(self._boxes)}"

    def put(self, sender: PeerId, message: Message) -> None:
        """Keep a message; it, or the latest of whoever has more here, goes if that is too much."""
        if sender not in self._boxes and len(self._boxes) >= self._places:
            return
        box = self._boxes.setdefault(sender, _Box())
        self._size -= box.size
        box.put(message)
        self._size += box.size
        while self._size > self._budget:
            self._relieve(sender)

    def take_means(self, round: int, wanted: Collection[tuple[int, Digest]]) -> list[tuple[PeerId, Mean]]:
        """See `Mailbox.take_means`."""
        found = [(peer, mean) for peer, box in self._boxes.items() for mean in box.take_means(round, wanted)]
        self._boxes = {peer: box for peer, box in self._boxes.items() if box.size}
        self._size = sum(box.size for box in self._boxes.values())
        return found

    @property
    def has_chunks(self) -> bool:
        """Whether anybody has sent any."""
        return any(box.chunks for box in self._boxes.values())

    def boxes(self) -> list[tuple[PeerId, _Box]]:
        """Everything that is here."""
        return list(self._boxes.items())

    def _relieve(self, sender: PeerId) -> None:
        """Of those who have most, `sender` is the one to lose something."""
        peer, box = max(self._boxes.items(), key=lambda item: (item[1].size, item[0] == sender))
        self._size -= box.size
        box.drop_latest()
        self._size += box.size
        if not box.size:
            del self._boxes[peer]


def _size(message: Message) -> int:
    """About what a message takes in memory; a payload, the room that was lent for it."""
    return OVERHEAD + (payload_memory(len(message.payload)) if isinstance(message, Chunk) else len(encode(message)))


Receive = Callable[[float, PeerId, Message], list[Effect]]


def replayed(receive: Receive, now: float, sender: PeerId, message: Message) -> list[Effect]:
    """What follows from a message that was kept; if it is bad, only its sender is to blame, not who comes now."""
    try:
        return receive(now, sender, message)
    except RemoteError as error:
        return [Tell(Blamed(error.peer or sender, error.reason))]
