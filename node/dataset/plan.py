"""Who is asked for which blob of a dataset: the core, without clock, disk or network.

Rules:
- A blob is on its way from one donor at a time. A donor has few on their way, more while it is quick; the one that
  waits for least is asked first, so a faster one is asked more often.
- Patience is learned from each donor's own times. Who lets one wait for longer, or whose connection breaks, rests,
  twice as long each time, and somebody else is asked.
- Who says "later" rests for as long as it says, within reason; who lacks the data, or has lied, is never asked again.
- While no donor is left of whom anything is expected there is no hope; a new one brings it back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from shoal.node.dataset.pieces import Blob
from shoal.protocol.estimate import Estimate
from shoal.protocol.ids import PeerId

MAX_WINDOW = 4  # blobs on their way from one donor
QUICK = 1.0  # seconds within which an answer widens the window
FIRST, LEAST, MOST = 10.0, 2.0, 60.0  # seconds of patience
REST_MOST = 15.0
GIVEN_UP = 4  # times in a row that a donor was late: from then on it gives no hope
NEVER_SERVED = 2  # the same of one that has sent nothing yet: it may be a place where nobody is
MAX_DONORS = 256


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask `donor` for `blob`, and wait for `patience` seconds."""

    donor: PeerId
    blob: Blob
    since: float
    patience: float


@dataclass(slots=True)
class Donor:
    """One that may have the data, and how it has served so far."""

    window: int = 1
    asked: int = 0
    served: int = 0
    misses: int = 0  # in a row
    rests_until: float = 0.0
    time: Estimate = field(default_factory=lambda: Estimate(FIRST, LEAST, MOST))

    def patience(self) -> float:
        return min(MOST, self.time.deadline() * 2.0**self.misses) if self.served else FIRST

    @property
    def gives_hope(self) -> bool:
        return self.misses < (GIVEN_UP if self.served else NEVER_SERVED)


class Plan:
    """All blobs that are wanted, and all donors. What is asked must come back: arrived, late, put off or dropped."""

    def __init__(self) -> None:
        self._queue: deque[Blob] = deque()
        self._donors: dict[PeerId, Donor] = {}
        self._out: dict[PeerId, None] = {}  # those of whom nothing is wanted; the oldest are forgotten

    def want(self, blobs: Iterable[Blob]) -> None:
        """These, too, in this order."""
        self._queue.extend(blobs)

    def meet(self, peer: PeerId) -> None:
        """Somebody who may have them."""
        if peer not in self._out and len(self._donors) < MAX_DONORS:
            self._donors.setdefault(peer, Donor())

    @property
    def waiting(self) -> int:
        """Blobs that are wanted and that nobody is asked for."""
        return len(self._queue)

    @property
    def serving(self) -> list[PeerId]:
        """Those who have sent something and are expected to send more."""
        return [peer for peer, donor in self._donors.items() if donor.served and donor.gives_hope]

    @property
    def has_hope(self) -> bool:
        """Whether anybody may still send anything."""
        return any(donor.gives_hope for donor in self._donors.values())

    @property
    def is_refused(self) -> bool:
        """Whether all whom we have met lack it, or have lied."""
        return bool(self._out) and not self._donors

    def asks(self, now: float) -> list[Ask]:
        """Whom to ask now, for what."""
        asks = []
        while self._queue and (peer := self._readiest(now)) is not None:
            donor = self._donors[peer]
            donor.asked += 1
            asks.append(Ask(peer, self._queue.popleft(), now, donor.patience()))
        return asks

    def pause(self, now: float) -> float | None:
        """Seconds until somebody who rests can be asked; None if nobody rests, or nothing is wanted."""
        rests = [donor.rests_until - now for donor in self._donors.values() if donor.rests_until > now]
        return min(rests) if rests and self._queue else None

    def arrived(self, now: float, ask: Ask) -> None:
        """The blob has come and is good."""
        if (donor := self._back(ask)) is None:
            return
        took = now - ask.since
        donor.time.observe(took)
        donor.served += 1
        donor.misses = 0
        donor.window = min(MAX_WINDOW, donor.window + 1) if took < QUICK else max(1, donor.window - 1)

    def late(self, now: float, ask: Ask) -> None:
        """Nothing has come."""
        self._queue.appendleft(ask.blob)
        if (donor := self._back(ask)) is not None and now >= donor.rests_until:  # its others were late with it
            donor.misses += 1
            donor.window = 1
            donor.rests_until = now + min(REST_MOST, 2.0 ** (donor.misses - 1))

    def put_off(self, now: float, ask: Ask, seconds: float) -> None:
        """The donor will send it later."""
        self._queue.appendleft(ask.blob)
        if (donor := self._back(ask)) is not None:
            donor.window = max(1, donor.window - 1)
            donor.rests_until = max(donor.rests_until, now + min(REST_MOST, seconds))

    def drop(self, ask: Ask) -> None:
        """The donor is of no use, for good."""
        self._queue.appendleft(ask.blob)
        self.shun(ask.donor)

    def shun(self, peer: PeerId) -> None:
        """Nothing is wanted of that peer."""
        self._donors.pop(peer, None)
        self._out[peer] = None
        if len(self._out) > MAX_DONORS:
            del self._out[next(iter(self._out))]

    def _back(self, ask: Ask) -> Donor | None:
        donor = self._donors.get(ask.donor)
        if donor is not None:
            donor.asked -= 1
        return donor

    def _readiest(self, now: float) -> PeerId | None:
        """Who can be asked, and will be through with it first."""
        ready = [
            ((donor.asked + 1) * (donor.time.mean or LEAST), order, peer)
            for order, (peer, donor) in enumerate(self._donors.items())
            if donor.asked < donor.window and donor.rests_until <= now
        ]
        return min(ready)[2] if ready else None
