"""The directory of a run in the DHT: what its members write under its key, when, and what is concluded from reading it.

Rules:
- An entry lives LIFETIME. It is renewed at a third of that, when our addresses change, and, while much of the run is
  missing, every minute, so that members on the other side of a cut see that we live.
- The directory is read when we have just joined, while we are alone, when a member is lost, and from time to time.
- A peer that is listed but not among the members that we see is contacted; nothing else in its entry is believed.
- An entry is evidence of a cut only if its author was a member here, was lost without a goodbye, and has written again
  since: dead members write nothing. Clocks play no part: we compare two of the author's own sequence numbers.
- Another history of a round that we have decided, in the entry of a lost member, is evidence as well. Members that we
  see report their state through membership, as entries are up to RENEW_EVERY seconds old.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from shoal.dht.effects import Found
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import NO_DIGEST, Digest, PeerId
from shoal.protocol.base.wire import Message, decode
from shoal.protocol.membership.vetting import vet_addresses
from shoal.protocol.messages.directory import ManifestEntry, MemberEntry, PartEntry, RunNotice

MEMBER = "member"  # subkey; a notice, and an entry under a manifest's key, has its run's id
LIFETIME = 1800.0  # seconds
RENEW_EVERY = LIFETIME / 3
PAUSES_WHILE_CUT = (60.0, 30.0)  # seconds between two writes, and two reads, while much of the run is missing
CUT_WINDOW = 600.0  # seconds for which lost members count as missing
MIN_WRITE_PAUSE = 10.0  # seconds between two writes, however often our addresses change
RETRY_PAUSES = (2.0, 60.0)  # the first and the longest, after a write that no server accepted, or while we are alone
ENTRY_TAGS = range(94, 99)
MAX_ENTRY = 4096


@dataclass(frozen=True, slots=True)
class ListedMember:
    """A member's entry, as read from the directory."""

    peer: PeerId
    sequence: int
    entry: MemberEntry


def read_entry(found: Found) -> Message | None:
    """The entry in a record of a directory; None if it was withdrawn or is invalid."""
    record = found.record
    if not record.value:
        return None
    try:
        entry = decode(record.value, record.author, MAX_ENTRY, ENTRY_TAGS)
        if isinstance(entry, MemberEntry | ManifestEntry | PartEntry | RunNotice):
            vet_addresses(entry.addresses, record.author)
    except RemoteError:
        return None
    return entry


def members_in(found: Iterable[Found]) -> list[ListedMember]:
    """The members among the records under a run's key."""
    rows = []
    for each in found:
        entry = read_entry(each) if each.record.subkey == MEMBER else None
        if isinstance(entry, MemberEntry):
            rows.append(ListedMember(each.record.author, each.record.sequence, entry))
    return rows


class Schedule:
    """When to write our entry, and when to read the directory."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._written: tuple[str, ...] | None = None  # our addresses in the entry that we wrote last
        self._write_at = self._read_at = 0.0
        self._written_at = self._read_last = float("-inf")
        self._write_pause = self._read_pause = RETRY_PAUSES[0]
        self._lost = 0

    def must_write(self, now: float, addresses: tuple[str, ...], cut: bool) -> bool:
        """Whether our entry is missing, old or wrong. `cut`: much of the run is missing."""
        moved = addresses != self._written and now >= self._written_at + MIN_WRITE_PAUSE
        return now >= self._write_at or moved or (cut and now >= self._written_at + PAUSES_WHILE_CUT[0])

    def wrote(self, now: float, addresses: tuple[str, ...], held: bool) -> None:
        """Note that our entry was written; `held`: at least one server has it."""
        self._written, self._written_at = addresses, now
        pause = RENEW_EVERY * self._rng.uniform(0.9, 1.0) if held else self._write_pause
        self._write_pause = RETRY_PAUSES[0] if held else min(RETRY_PAUSES[1], 2 * self._write_pause)
        self._write_at = now + pause

    def must_read(self, now: float, alone: bool, lost: int, cut: bool) -> bool:
        """Whether there may be members that we do not see. `lost`: how many are missing."""
        is_new_loss, self._lost = lost > self._lost, lost
        if is_new_loss or (cut and now >= self._read_last + PAUSES_WHILE_CUT[1]):
            return True
        if alone:
            return now >= self._read_last + self._read_pause
        self._read_pause = RETRY_PAUSES[0]
        return now >= self._read_at

    def read(self, now: float) -> None:
        """Note that the directory was read, with or without an answer."""
        self._read_last, self._read_at = now, now + RENEW_EVERY * self._rng.uniform(0.9, 1.0)
        self._read_pause = min(RETRY_PAUSES[1], 2 * self._read_pause)


class Evidence:
    """Where the directory contradicts membership."""

    def __init__(self) -> None:
        self._first: dict[PeerId, int] = {}  # the sequence of a lost member when we first saw it after the loss
        self.elsewhere: tuple[PeerId, ...] = ()  # lost members that have written since
        self.apart: tuple[PeerId, ...] = ()  # lost members with another history of a round that we have decided

    def weigh(
        self,
        listed: Sequence[ListedMember],
        lost: Sequence[PeerId],
        history: Callable[[int], Digest | None],
    ) -> None:
        """Take in what was read. `lost`: members that died without a goodbye; `history`: our digest after a round."""
        latest = {each.peer: each.sequence for each in listed}
        self._first = {peer: self._first.get(peer, latest[peer]) for peer in lost if peer in latest}
        self.elsewhere = tuple(peer for peer in self._first if latest[peer] > self._first[peer])
        self.apart = tuple(each.peer for each in listed if each.peer in lost and _differs(each.entry, history))

    def still_lost(self, lost: Sequence[PeerId]) -> None:
        """Drop the evidence of members that are back or have said goodbye meanwhile."""
        self.elsewhere = tuple(peer for peer in self.elsewhere if peer in lost)
        self.apart = tuple(peer for peer in self.apart if peer in lost)


def _differs(entry: MemberEntry, history: Callable[[int], Digest | None]) -> bool:
    """Whether the author stood on another state than we after the same round; without a digest it had none yet."""
    return entry.history != NO_DIGEST and history(entry.round) not in (None, entry.history)
