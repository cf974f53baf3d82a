"""How peers share one expert that answers: whose question is next, and whose texts are in its slots. Pure.

Rules for questions:
- A step is one call of the expert. It takes the oldest question of each peer in turn until STEP tokens are together, so
  who asks much delays others by one step, and many who ask little are answered at once.
- Of each peer WAITING questions wait at most, and ALL together; none has over STEP tokens, or over TEXTS additions.

Rules for slots:
- A text is named by the peer, by which of its processes asks, and by a number. While an addition to it is worked on
  nothing else is done with it.
- A peer has at most `each` texts, so none takes all slots. If no slot is free, one is taken from a text that was idle
  for PRESSED seconds, of the peer that has most; its asker finds it forgotten, and begins it anew elsewhere. A peer
  that has `each` texts loses one of its own idle ones: a process of its that was killed has announced no ends.
- A text that was idle for IDLE seconds is forgotten; or for GONE seconds, if its peer has no connection with us.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from shoal.node.experts.questions import STEP
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.experts import Addition, AskExpert, Verdict

WAITING, ALL = 32, 512
IDLE, GONE, PRESSED = 120.0, 10.0, 15.0

Name = tuple[PeerId, int, int]
"""Of a text: who asks, which of its processes, and the number that this one has given it."""


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


class QuestionQueue:
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


@dataclass(slots=True)
class Text:
    """What a slot holds."""

    slot: int
    held: int  # tokens
    used_at: float
    is_busy: bool = True  # an addition is worked on
    is_ended: bool = False  # and after that, it is forgotten


class SlotAccounts:
    """Of one expert with so many `slots`, whose context is `limit` tokens."""

    def __init__(self, slots: int, each: int, limit: int) -> None:
        self._each, self._limit = each, limit
        self._free = list(range(slots))  # a heap: low slots first, so that those in use lie together
        self._texts: dict[Name, Text] = {}
        self._gone: set[PeerId] = set()
        self._freed: list[int] = []

    def __len__(self) -> int:
        return len(self._texts)

    def check(self, peer: PeerId, asker: int, additions: Iterable[Addition]) -> None:
        """RemoteError unless the additions are of distinct texts, none of which is worked on, and fit the context."""
        seen = set()
        for each in additions:
            text = self._texts.get((peer, asker, each.text))
            if not each.tokens:
                raise RemoteError("asks what follows no tokens", peer)
            if each.held + len(each.tokens) > self._limit:
                raise RemoteError(f"asks about a text of over {self._limit} tokens", peer)
            if each.text in seen or (text is not None and text.is_busy):
                raise RemoteError("adds to a text while another addition is worked on", peer)
            seen.add(each.text)

    def admit(self, now: float, peer: PeerId, asker: int, addition: Addition) -> int | Verdict:
        """The slot for an addition that was checked, or why there is none."""
        self._gone.discard(peer)
        name = (peer, asker, addition.text)
        text = self._texts.get(name)
        if addition.held:
            if text is None or text.held != addition.held:
                self._forget(name)
                return Verdict.FORGOTTEN
            text.is_busy = True
            return text.slot
        self._forget(name)
        if self._held_by()[peer] >= self._each:
            has_room = self._evict(now, peer)
        else:
            has_room = bool(self._free) or self._evict(now)
        if not has_room:
            return Verdict.FULL
        slot = heapq.heappop(self._free)
        self._texts[name] = Text(slot, 0, now)
        return slot

    def added(self, now: float, peer: PeerId, asker: int, addition: Addition) -> None:
        """An addition that had a slot was worked on."""
        text = self._texts[peer, asker, addition.text]
        text.held, text.used_at, text.is_busy = addition.held + len(addition.tokens), now, False
        if text.is_ended:
            self._forget((peer, asker, addition.text))

    def failed(self, peer: PeerId, asker: int, text: int) -> None:
        """What was worked on cannot be gone on with."""
        self._forget((peer, asker, text))

    def end(self, peer: PeerId, asker: int, texts: Iterable[int]) -> None:
        """The asker has no use for these any more."""
        for each in texts:
            self._end((peer, asker, each))

    def lost(self, peer: PeerId) -> None:
        """The peer has no connection with us."""
        if any(name[0] == peer for name in self._texts):
            self._gone.add(peer)

    def tidy(self, now: float) -> None:
        """Forget what is idle."""
        for name, text in list(self._texts.items()):
            limit = GONE if name[0] in self._gone else IDLE
            if not text.is_busy and now - text.used_at >= limit:
                self._forget(name)
        self._gone &= {name[0] for name in self._texts}

    def freed(self) -> list[int]:
        """The slots that were freed since this was last asked: their expert must be told before they are used again."""
        freed, self._freed = self._freed, []
        return freed

    def _evict(self, now: float, only: PeerId | None = None) -> bool:
        """Whether a slot was freed; `only`: of that peer."""
        most = self._held_by()
        idle = [
            (most[name[0]], now - text.used_at, name)
            for name, text in self._texts.items()
            if not text.is_busy and now - text.used_at >= PRESSED and only in (None, name[0])
        ]
        if idle:
            self._forget(max(idle)[2])
        return bool(idle)

    def _held_by(self) -> Counter[PeerId]:
        return Counter(name[0] for name in self._texts)

    def _end(self, name: Name) -> None:
        if (text := self._texts.get(name)) is not None and text.is_busy:
            text.is_ended = True
        else:
            self._forget(name)

    def _forget(self, name: Name) -> None:
        if (text := self._texts.pop(name, None)) is not None:
            self._freed.append(text.slot)
            heapq.heappush(self._free, text.slot)
