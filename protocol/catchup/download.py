"""A version of the state that is being downloaded: what is here, who is asked for what, and how much at once.

As many chunks are asked for at once as the line brings before long, whoever sends them: it may be ours that is slow,
and then chunks of many donors only get into each other's way. So we begin with one, and ask for more while each comes
in a few seconds, or hardly later than one alone did. Half of them may be under way from other joiners: those only say
that they have a chunk, donors have shown that they are on the right version, and all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice

from shoal.protocol.averaging.policy import Base
from shoal.protocol.base.allowance import Allowance
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import Digest, PeerId, content_hash

SLACK = 3.0  # times as long as a chunk took its successor may take; and as far as another joiner may be behind us
PROMPT = 8.0  # seconds: chunks that come sooner are not in each other's way,
HARDLY_LATER = 1.3  # nor are those that take no more than so many times as long as the quickest did
MOST = 128  # chunks that are asked for at once
WAITS = 4  # patiences, or half of the time so far, that may pass in all while everything is left to other joiners


@dataclass(slots=True)
class Fellow:
    """Another joiner of the same version."""

    news: Allowance  # of what it tells us, as to read that is work
    ours: int  # how many chunks were here when it last told us what it has
    moved: float  # when that last grew
    has: set[int]  # chunks
    spare: list[int]  # those of them that we lacked when it told us; the last is asked for first

    @property
    def keeps_up(self) -> bool:
        """Whether it gets on about as fast as we do."""
        return SLACK * len(self.has) >= self.ours


@dataclass(frozen=True, slots=True)
class Owed:
    """What somebody was asked for who was silent then."""

    since: float
    chunks: frozenset[int]
    is_donor: bool


@dataclass(slots=True)
class Download:
    """A version that is being downloaded."""

    base: Base
    hashes: tuple[Digest, ...]
    here: set[int]  # chunks that have come
    unasked: dict[int, None]  # the missing ones that no donor has been asked for, in the order of the asking
    asked: dict[int, tuple[PeerId, float]] = field(default_factory=dict)
    donors: list[PeerId] = field(default_factory=list)
    heard: dict[PeerId, float] = field(default_factory=dict)  # when each last sent a chunk
    fellows: dict[PeerId, Fellow] = field(default_factory=dict)
    reserved: set[int] = field(default_factory=set)  # chunks that other joiners get from donors
    quick: set[PeerId] = field(default_factory=set)  # those whose last chunk came quickly
    begun: tuple[float, int] = (0.0, 0)  # when this process began, and the chunks that were here then
    told: dict[PeerId, int] = field(default_factory=dict)  # who was told of how many of our chunks
    most: int = 1  # chunks that may be on their way at once
    quickest: float | None = None  # seconds in which a chunk has come
    owing: dict[PeerId, Owed] = field(default_factory=dict)  # of those who were given up
    for_donors: set[int] = field(default_factory=set)  # chunks that another joiner has not brought in time
    is_alone: bool = False  # nothing is left to other joiners any more
    waited: float = 0.0  # seconds in which no donor was asked for anything, as all was left to other joiners
    looked: float = 0.0  # when that was last looked at
    renewed: float = 0.0  # when the donors last heard that we are still at it

    @property
    def is_complete(self) -> bool:
        """Whether every chunk is here."""
        return len(self.here) == len(self.hashes)

    def lacks(self, index: int) -> bool:
        """Whether this chunk has not come."""
        return 0 <= index < len(self.hashes) and index not in self.here

    def take(self, index: int) -> None:
        """This chunk has come."""
        self.here.add(index)
        self.asked.pop(index, None)
        self.unasked.pop(index, None)

    def seconds_left(self, now: float) -> float | None:
        """How long the rest takes, at the pace so far; None while nothing has come."""
        since, before = self.begun
        came = len(self.here) - before
        return (now - since) / came * (len(self.hashes) - len(self.here)) if came else None

    def learn(self, took: float, is_donor: bool) -> None:
        """A chunk has come in so many seconds, after what was asked of its donor before; or of another joiner."""
        if is_donor or self.quickest is None:  # a joiner next door is no measure for donors' lines
            self.quickest = took if self.quickest is None else min(self.quickest, took)
        if took <= max(PROMPT, HARDLY_LATER * self.quickest):
            self.most = min(MOST, max(self.most + 1, int(PROMPT / max(took, PROMPT / MOST))))
        else:
            self.most = max(1, min(self.most, len(self.asked)) // 2)

    def last_heard(self, donor: PeerId, asked_at: float) -> float:
        """When `donor` was asked, or sent its last chunk, if later: chunks queue behind each other on its link."""
        return max(asked_at, self.heard.get(donor, asked_at))

    def owes(self, peer: PeerId, index: int) -> bool:
        """Whether `peer` was given up while it was asked for this chunk."""
        return peer in self.owing and index in self.owing[peer].chunks

    def settle(self, peer: PeerId) -> float | None:
        """`peer` has brought a chunk late: it is one of the others again. Since when it owed that, if it did."""
        owed = self.owing.pop(peer, None)
        if owed is None:
            return None
        if owed.is_donor:
            self.donors.append(peer)
        return owed.since

    def forget_debts(self, is_alive: Callable[[PeerId], bool]) -> None:
        """Another joiner that has died may come back, and has nothing on its way then."""
        self.owing = {peer: owed for peer, owed in self.owing.items() if owed.is_donor or is_alive(peer)}

    def give_up(self, peer: PeerId) -> None:
        """`peer` is silent: ask others, until it brings what it owes."""
        asked = {index: at for index, (donor, at) in self.asked.items() if donor == peer}
        if asked:
            since = max(self.last_heard(peer, at) for at in asked.values())
            if peer in self.fellows:
                self.for_donors |= asked.keys()
            self.owing[peer] = Owed(since, frozenset(asked), peer in self.donors)
        self.drop(peer)

    def drop(self, peer: PeerId) -> None:
        """Ask `peer` for nothing more."""
        self.donors = [donor for donor in self.donors if donor != peer]
        self.fellows.pop(peer, None)
        self.unasked |= dict.fromkeys(index for index, asked in self.asked.items() if asked[0] == peer)
        self.asked = {index: asked for index, asked in self.asked.items() if asked[0] != peer}

    def fellows_may(self) -> int:
        """How many chunks may be under way from other joiners: so their silence displaces no donor."""
        return self.most // 2 if self.quickest is not None else 0

    def free(self, peer: PeerId, window: int) -> int:
        """How many more chunks `peer` may be asked for, of whom at most `window` are wanted at once."""
        holders = [holder for holder, _ in self.asked.values()]
        of_fellows, may = sum(holder in self.fellows for holder in holders), self.fellows_may()
        free = window - holders.count(peer)
        if peer not in self.donors:
            return min(free, self.most - len(holders), may - of_fellows)
        return min(free, self.most - (len(holders) - of_fellows) - min(of_fellows, may))

    def sort(self, now: float, me: PeerId, patience: float) -> None:
        """Put what is still to be asked for into the order in which donors are asked for it.

        First our share, then what other joiners have; what is in their shares and on its way to them is not asked for,
        while they get on, and about as fast as we do. Each begins in another place, so that those who have not met yet
        ask for other chunks.
        """
        self.is_alone = self.is_alone or self._is_left_waiting(now, patience)
        fellows = {} if self.is_alone else self.fellows
        moving = [peer for peer, each in fellows.items() if now - each.moved <= patience]
        owners = sorted([me, *(peer for peer in moving if self.fellows[peer].keeps_up)])
        seen = set[int]().union(*(each.has for each in self.fellows.values()))
        size, count, rank = len(self.hashes), len(owners), owners.index(me)
        begin = int.from_bytes(content_hash(me.encode())[:8], "big") % size
        self.reserved = {index for index in self.unasked if index % count != rank and index not in seen}

        def place(index: int) -> tuple[bool, bool, int]:
            return index in self.reserved, index in seen, (index - begin) % size

        self.unasked = dict.fromkeys(sorted(self.unasked, key=place))

    def _is_left_waiting(self, now: float, patience: float) -> bool:
        """Whether no donor is asked, as all that is missing is left to other joiners, and that takes too long.

        If nothing comes, that is soon; but who brings a chunk now and then must not hold its share for ever.
        """
        begun, since, self.looked = self.begun[0], max(self.begun[0], self.looked), now
        if not self.reserved or any(peer in self.donors for peer, _ in self.asked.values()):
            return False
        self.waited += now - since
        is_silent = now - max(self.heard.values(), default=begun) > patience
        return is_silent or self.waited > max(WAITS * patience, (now - begun) / 2)

    def from_donor(self, most: int) -> list[int]:
        """What to ask a donor for next; the reserved ones come last."""
        return [index for index in islice(self.unasked, most) if index not in self.reserved]

    def from_fellow(self, fellow: PeerId, most: int) -> list[int]:
        """What to ask another joiner for next: the last that we would ask donors for."""
        spare, found = self.fellows[fellow].spare, list[int]()
        while spare and len(found) < most:
            if (index := spare.pop()) in self.unasked and index not in self.for_donors:
                found.append(index)
        return found


def bits_of(chunks: Iterable[int], count: int) -> bytes:
    """A bit for each of `count` chunks, as in HaveChunks."""
    bits = bytearray((count + 7) // 8)
    for index in chunks:
        bits[index >> 3] |= 1 << (index & 7)
    return bytes(bits)


def set_of(bits: bytes, count: int, sender: PeerId) -> set[int]:
    """The chunks whose bits are set; RemoteError if there are not as many bits as chunks."""
    if len(bits) != (count + 7) // 8:
        raise RemoteError(f"says of {8 * len(bits)} chunks which it has, of a state of {count}", sender)
    return {index for index in range(count) if bits[index >> 3] >> (index & 7) & 1}
