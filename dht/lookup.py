"""One iterative lookup (Kademlia's node lookup), from the nearest servers that we know to the nearest that exist.

It uses disjoint paths, as in S/Kademlia (Baumgart and Mies 2007, section 4.4): each path has its own list of
candidates, nearest first, fed by the answers of the servers that it has asked.

Rules:
- PATHS paths, each with one call under way: ALPHA in all. Where our table holds all the nearest there is one path, and
  it asks a single server first: in a small or quiet network one call is enough, and otherwise ALPHA follow at once.
- A node is asked once, by the path that comes to it first, and its answer feeds that path only: a liar on one path
  cannot choose where another goes.
- Whether a candidate exists is known once it answers. A speaker that has named MAX_DUDS more silent nodes than living
  ones is ignored from then on, and candidates that only such speakers have named are not asked. So nobody can discredit
  a node by naming it beside silent ones.
- A silent node costs its path one deadline. It may still answer, and its answer counts then.
- A path is finished when the `wanted` nearest candidates of its list have answered.
- The lookup ends when all paths are finished, when its owner stops it, or after MAX_CALLS calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from heapq import nsmallest
from itertools import islice
from operator import attrgetter

from shoal.dht.calls import Calls
from shoal.dht.keys import REPLICAS, K, node_id
from shoal.dht.table import Table
from shoal.dht.vetting import vetted_contacts
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.messages.dht import Contact, FindNode, FindRecords, Nodes, Records

MAX_CANDIDATES = 60  # of a path
MAX_DUDS = 3  # silent nodes, beyond as many living ones, that a speaker may name
DISTANCE = attrgetter("distance")
PATHS = 3
ALPHA = 3  # calls of a lookup on their way at once
MAX_CALLS = 100


class State(Enum):
    """What a lookup knows of a candidate."""

    NEW = auto()
    ASKED = auto()
    ANSWERED = auto()
    FAILED = auto()


@dataclass(slots=True)
class Candidate:
    """A node that may be asked, shared by all paths that heard of it."""

    contact: Contact
    distance: int
    hop: int
    speakers: list[PeerId]  # that have named it; none if it is from our own table
    state: State = State.NEW
    has_responded: bool = False  # perhaps with an invalid answer


@dataclass(slots=True)
class Path:
    """The candidates of one path."""

    duds: Counter[PeerId]  # silent minus living nodes that each speaker has named; shared by all paths
    waiting: int = 0  # calls of this path that are not overdue
    _list: list[Candidate] = field(default_factory=list)
    _offered: set[PeerId] = field(default_factory=set)

    def offer(self, candidates: Iterable[Candidate]) -> None:
        """Take new candidates into the list, if they are near enough."""
        for candidate in candidates:
            if candidate.contact.peer not in self._offered:
                self._offered.add(candidate.contact.peer)
                self._list.append(candidate)
        self._list.sort(key=DISTANCE)
        del self._list[MAX_CANDIDATES:]

    def usable(self) -> Iterator[Candidate]:
        """Candidates that have not failed and whose speakers are believed, nearest first."""
        return (candidate for candidate in self._list if self._is_usable(candidate))

    def next(self, wanted: int) -> Candidate | None:
        """The candidate to ask next: the nearest one not asked yet, if it is among the `wanted` nearest."""
        for count, candidate in enumerate(self.usable()):
            if count == wanted:
                return None
            if candidate.state is State.NEW:
                return candidate
        return None

    def is_over(self, wanted: int) -> bool:
        """Whether the `wanted` nearest have all answered."""
        for count, candidate in enumerate(self.usable()):
            if count == wanted:
                return True
            if candidate.state is not State.ANSWERED:
                return False
        return True

    def _is_usable(self, candidate: Candidate) -> bool:
        if candidate.state is State.NEW:
            speakers = candidate.speakers
            return not speakers or any(self.duds[speaker] < MAX_DUDS for speaker in speakers)
        return candidate.state is not State.FAILED


OnAnswer = Callable[[float, Candidate, Nodes | Records], None]
OnMove = Callable[[float], None]


def _ignore(now: float, candidate: Candidate, answer: Nodes | Records) -> None:
    """Ignore the answer, for lookups that only search the nearest servers."""


class Lookup:
    """Asks `question` of ever nearer servers until the `wanted` nearest of each path have answered.

    `on_answer` may refuse an answer with a RemoteError. `on_move` is called after each accepted answer, and at the end.
    """

    def __init__(
        self,
        me: PeerId,
        table: Table,
        calls: Calls,
        target: Digest,
        wanted: int,
        on_move: OnMove,
        question: FindRecords | None = None,
        on_answer: OnAnswer = _ignore,
        most: int = MAX_CALLS,
    ) -> None:
        self._me, self._table, self._calls = me, table, calls
        self.target = int.from_bytes(target, "big")
        self._question = question or FindNode(target)
        self._expected = Records if question else Nodes
        self._wanted, self._most = wanted, most
        self._on_answer, self._on_move = on_answer, on_move
        self._candidates: dict[PeerId, Candidate] = {}
        self._asked_by: dict[PeerId, Path] = {}
        self._duds: Counter[PeerId] = Counter()
        self._paths: list[Path] = []
        self._width = 1  # calls of one path at once
        self.calls_made = 0
        self.answers = 0
        self.hops = 0
        self.is_over = False
        self.is_paused = False

    def begin(self, now: float, *, trusting: bool = True) -> None:
        """Ask the first servers; `trusting`: if our table seems to hold all the nearest, one path is enough."""
        known = self._table.closest(self.target, K)
        straight = trusting and self._table.is_complete(self.target, REPLICAS, now)
        self._paths = [Path(self._duds) for _ in range(1 if straight else PATHS)]
        candidates = [self._candidate(contact, 1, None) for contact in known]
        for number, path in enumerate(self._paths):
            path.offer(candidates[number :: len(self._paths)])
        self._advance(now)

    def pause(self) -> None:
        """Make no calls until `go_on`: the owner has what it wants for now."""
        self.is_paused = True

    def go_on(self, now: float) -> None:
        """Make calls again after `pause`."""
        if self.is_paused:
            self.is_paused = False
            self._advance(now)

    def stop(self) -> None:
        """End the lookup; answers that still come are not handed to its owner."""
        self.is_over = True

    def nearest(self, count: int) -> list[Candidate]:
        """The nearest usable candidates of all paths, asked or not."""
        usable = {each.distance: each for path in self._paths for each in islice(path.usable(), count)}
        return [usable[distance] for distance in sorted(usable)[:count]]

    def deepen(self, wanted: int) -> None:
        """Raise how many of the nearest are to answer; the lookup continues with `go_on`."""
        self._wanted, self.is_over, self.is_paused = wanted, False, True

    def named(self, count: int) -> list[Contact]:
        """The nearest candidates that anybody has named, failed or not."""
        return [each.contact for each in nsmallest(count, self._candidates.values(), key=DISTANCE)]

    def responded(self, count: int) -> list[Contact]:
        """The nearest candidates that have answered, even if invalidly."""
        found = (each for each in self._candidates.values() if each.has_responded)
        return [each.contact for each in nsmallest(count, found, key=DISTANCE)]

    def answered(self, now: float, contact: Contact, answer: object) -> None:
        """Take the answer of a candidate."""
        self._candidates[contact.peer].has_responded = True
        if not isinstance(answer, self._expected):
            raise RemoteError(f"answers {type(self._question).__name__} with {type(answer).__name__}", contact.peer)
        named = vetted_contacts(self._me, contact.peer, answer.closer)
        candidate, path = self._candidates[contact.peer], self._asked_by[contact.peer]
        if not self.is_over:
            self._on_answer(now, candidate, answer)
        if candidate.state is State.ASKED:
            path.waiting -= 1
        candidate.state = State.ANSWERED
        self.answers += 1
        self.hops = max(self.hops, candidate.hop)
        self._duds.subtract(candidate.speakers)
        self._table.note_missing(now, named)
        path.offer([self._candidate(each, candidate.hop + 1, contact.peer) for each in named])
        if not self.is_over:
            self._on_move(now)
        self._widen(now)

    def failed(self, now: float, contact: Contact) -> None:
        """A candidate has not answered so far."""
        candidate = self._candidates[contact.peer]
        candidate.state = State.FAILED
        self._asked_by[contact.peer].waiting -= 1
        self._duds.update(candidate.speakers)
        self._widen(now)

    def _candidate(self, contact: Contact, hop: int, speaker: PeerId | None) -> Candidate:
        known = self._candidates.get(contact.peer)
        if known is None:
            speakers = [] if speaker is None else [speaker]
            known = Candidate(contact, node_id(contact.peer) ^ self.target, hop, speakers)
            self._candidates[contact.peer] = known
        elif known.speakers and speaker is not None:
            known.speakers.append(speaker)
        return known

    def _widen(self, now: float) -> None:
        self._width = ALPHA // len(self._paths)
        self._advance(now)

    def _advance(self, now: float) -> None:
        if self.is_over or self.is_paused:
            return
        for path in self._paths:
            while path.waiting < self._width and self.calls_made < self._most:
                candidate = path.next(self._wanted)
                if candidate is None:
                    break
                self._ask(now, path, candidate)
        busy = any(path.waiting for path in self._paths)
        if all(path.is_over(self._wanted) for path in self._paths) or not busy:
            self.is_over = True
            self._on_move(now)

    def _ask(self, now: float, path: Path, candidate: Candidate) -> None:
        candidate.state = State.ASKED
        self._asked_by[candidate.contact.peer] = path
        path.waiting += 1
        self.calls_made += 1
        self._calls.ask(now, candidate.contact, self._question, self)
