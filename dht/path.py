"""One of the disjoint paths of a lookup: its own list of candidates, nearest first, fed by those it has asked.

Rules:
- Paths share who was asked, never what was heard: a liar on one path cannot choose where another goes. A node is asked
  once, by the path that comes to it first, and its answer feeds that path.
- A candidate is hearsay. Who has named MAX_DUDS more silent nodes than living ones vouches for nobody any more; whom
  only such speakers have named is not asked. So nobody can discredit a node by naming it beside silent ones.
- A path is at its end when the nearest of its list have answered, as many as are wanted, and nobody nearer is left.

S/Kademlia (Baumgart and Mies 2007), section 4.4.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from operator import attrgetter

from shoal.protocol.ids import PeerId
from shoal.protocol.messages.dht import Contact

MAX_CANDIDATES = 60  # of a path
MAX_DUDS = 3
DISTANCE = attrgetter("distance")


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
    speakers: list[PeerId]  # who has named it; nobody, if it is from our own table
    state: State = State.NEW
    is_there: bool = False  # it has answered, if only with nonsense


@dataclass(slots=True)
class Path:
    """The candidates of one path."""

    duds: Counter[PeerId]  # of each speaker; the lookup's
    waiting: int = 0  # calls of this path that are not overdue
    _list: list[Candidate] = field(default_factory=list)
    _offered: set[PeerId] = field(default_factory=set)

    def offer(self, candidates: Iterable[Candidate]) -> None:
        """Take these into the list, if they are near enough."""
        for candidate in candidates:
            if candidate.contact.peer not in self._offered:
                self._offered.add(candidate.contact.peer)
                self._list.append(candidate)
        self._list.sort(key=DISTANCE)
        del self._list[MAX_CANDIDATES:]

    def usable(self) -> Iterator[Candidate]:
        """Candidates that have not failed, nearest first."""
        return (candidate for candidate in self._list if self._is_usable(candidate))

    def next(self, wanted: int) -> Candidate | None:
        """Whom to ask: the nearest that was not, if it is among the `wanted` nearest."""
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
