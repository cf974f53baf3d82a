"""How peers share one expert: whose question is computed next, and whose texts have its slots. Pure.

Rules for questions:
- A step is one call of the expert. It takes the oldest question of each peer in turn, up to STEP tokens together. So a
  peer that asks much delays others by one step at most, and small questions of many peers are answered together.
- At most WAITING questions of one peer wait, and ALL_WAITING of all peers; none has over STEP tokens, or over TEXTS
  additions.

Rules for slots:
- A text is identified by the peer, its asking process, and a number. While an addition to it is computed nothing else
  is done with it.
- A peer has at most `each` texts, so no peer takes all slots. If no slot is free, one is taken from the peer with the
  most texts, from one that was idle for PRESSED seconds; its asker finds it forgotten, and begins it again elsewhere.
  A peer that has `each` texts loses an idle one of its own: a process of its that was killed has announced no ends.
- A text is forgotten when it was idle for IDLE seconds; or for GONE seconds, if its peer is not connected.
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

WAITING, ALL_WAITING = 32, 512
IDLE, GONE, PRESSED = 120.0, 10.0, 15.0  # seconds

TextKey = tuple[PeerId, int, int]
"""Identifies a text: the peer, its asking process, and the number that this process has given the text."""


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """One question of a peer."""

    peer: PeerId
    asked: AskExpert
    ended: set[int] = field(default_factory=set)  # its texts that have ended while the question waited

    @property
    def tokens(self) -> int:
        """The tokens to be read."""
        return sum(len(each.tokens) for each in self.asked.additions)


class QuestionQueue:
    """The waiting questions about one expert."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[PeerId, deque[Question]] = OrderedDict()  # in the order of their turns
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, question: Question) -> bool:
        """Add a question; False if too many wait already."""
        its = self._waiting.get(question.peer)
        if self._count >= ALL_WAITING or (its is not None and len(its) >= WAITING):
            return False
        self._waiting.setdefault(question.peer, deque()).append(question)
        self._count += 1
        return True

    def end(self, peer: PeerId, asker: int, texts: Iterable[int]) -> None:
        """The asker has ended these texts, which may not have begun yet."""
        for question in self._waiting.get(peer, ()):
            if question.asked.asker == asker:
                question.ended.update(texts)

    def take(self) -> list[Question]:
        """Take the questions of the next step; those of one peer in the order in which they came."""
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
    """The text in a slot."""

    slot: int
    held: int  # tokens
    used_at: float
    is_busy: bool = True  # an addition is being computed
    is_ended: bool = False  # to be forgotten after the present addition


class SlotAccounts:
    """Who holds the `slots` of one expert, whose context is `limit` tokens."""

    def __init__(self, slots: int, each: int, limit: int) -> None:
        self._each, self._limit = each, limit
        self._free = list(range(slots))  # a heap: low slots are used first, so that used slots are adjacent
        self._texts: dict[TextKey, Text] = {}
        self._gone: set[PeerId] = set()
        self._freed: list[int] = []

    def __len__(self) -> int:
        return len(self._texts)

    def check(self, peer: PeerId, asker: int, additions: Iterable[Addition]) -> None:
        """RemoteError unless the additions are of distinct texts that are not busy, and fit the context."""
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
        """The slot for a checked addition, or the reason why there is none."""
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
        """An admitted addition was computed."""
        text = self._texts[peer, asker, addition.text]
        text.held, text.used_at, text.is_busy = addition.held + len(addition.tokens), now, False
        if text.is_ended:
            self._forget((peer, asker, addition.text))

    def failed(self, peer: PeerId, asker: int, text: int) -> None:
        """An addition could not be computed: the text is lost."""
        self._forget((peer, asker, text))

    def end(self, peer: PeerId, asker: int, texts: Iterable[int]) -> None:
        """The asker has ended these texts."""
        for each in texts:
            self._end((peer, asker, each))

    def lost(self, peer: PeerId) -> None:
        """The peer is not connected any more."""
        if any(name[0] == peer for name in self._texts):
            self._gone.add(peer)

    def tidy(self, now: float) -> None:
        """Forget idle texts."""
        for name, text in list(self._texts.items()):
            limit = GONE if name[0] in self._gone else IDLE
            if not text.is_busy and now - text.used_at >= limit:
                self._forget(name)
        self._gone &= {name[0] for name in self._texts}

    def freed(self) -> list[int]:
        """The slots freed since the last call: the expert must be told before they are used again."""
        freed, self._freed = self._freed, []
        return freed

    def _evict(self, now: float, only: PeerId | None = None) -> bool:
        """Free the slot of an idle text, if there is one; `only`: of that peer."""
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

    def _end(self, name: TextKey) -> None:
        if (text := self._texts.get(name)) is not None and text.is_busy:
            text.is_ended = True
        else:
            self._forget(name)

    def _forget(self, name: TextKey) -> None:
        if (text := self._texts.pop(name, None)) is not None:
            self._freed.append(text.slot)
            heapq.heappush(self._free, text.slot)
