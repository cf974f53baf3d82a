"""Whose questions are worked on next: some of each peer's in turn, as many together as make one step.

Rules:
- A step is one call of the expert. It takes the oldest question of each peer in turn until STEP tokens are together, so
  who asks much delays others by one step, and many who ask little are answered at once.
- Of each peer WAITING questions wait at most, and ALL together; none has over STEP tokens, or over TEXTS additions.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from shoal.protocol.errors import RemoteError
from shoal.protocol.ids import PeerId
from shoal.protocol.messages.experts import AskExpert

STEP = 1024  # tokens
TEXTS = 256
ENDED = 4096
WAITING, ALL = 32, 512


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """What a peer has asked."""

    peer: PeerId
    asked: AskExpert
    ended: set[int] = field(default_factory=set)  # texts of it that have ended while it waited

    @property
    def tokens(self) -> int:
        """That are to be read."""
        return sum(len(each.tokens) for each in self.asked.additions)


def check_size(peer: PeerId, asked: AskExpert) -> None:
    """RemoteError if nobody may ask so much at once."""
    tokens = sum(len(each.tokens) for each in asked.additions)
    if tokens > STEP or len(asked.additions) > TEXTS or len(asked.ended) > ENDED:
        raise RemoteError(f"asks about over {STEP} tokens or {TEXTS} texts at once", peer)


class Turns:
    """Questions about one expert."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[PeerId, deque[Question]] = OrderedDict()  # whose turn is next first
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, question: Question) -> bool:
        """Whether it may wait."""
        its = self._waiting.get(question.peer)
        if self._count >= ALL or (its is not None and len(its) >= WAITING):
            return False
        self._waiting.setdefault(question.peer, deque()).append(question)
        self._count += 1
        return True

    def end(self, peer: PeerId, asker: int, texts: Iterable[int]) -> None:
        """An asker has no use for these any more, also where they have not begun yet."""
        for question in self._waiting.get(peer, ()):
            if question.asked.asker == asker:
                question.ended.update(texts)

    def take(self) -> list[Question]:
        """The next step's; of one peer in the order in which they came."""
        taken: list[Question] = []
        left = STEP
        while self._waiting:
            peer, its = next(iter(self._waiting.items()))
            if its[0].tokens > left:
                break
            question = its.popleft()
            self._count -= 1
            left -= question.tokens
            taken.append(question)
            if its:
                self._waiting.move_to_end(peer)
            else:
                del self._waiting[peer]
        return taken
