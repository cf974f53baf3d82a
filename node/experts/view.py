"""What a member has read about its family in the DHT: live claims, files, and the peers that have them.

Pure: entries are passed in with the time at which they were read. A peer that shows a bad entry is named, and the entry
is ignored. Entries are remembered, as a reading that lacks a peer proves nothing, and a card outlives the claim of its
author. A file that could not be fetched is ignored until a peer writes again that it has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shoal.node.experts.card import check_card
from shoal.node.experts.claims import LEASE, Claim, Leases, Reading
from shoal.node.experts.parts import common
from shoal.node.manifest.manifest import Manifest
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.signing import Signer
from shoal.protocol.messages.directory import ExpertCard, PartEntry
from shoal.protocol.messages.genesis import Genesis

CARDS = 4  # the newest cards of a part are remembered
MOST_ENTRIES = 2048
MAX_TERM = 2**31  # of a claim: no honest peer counts so far


@dataclass(frozen=True, slots=True)
class PartRecord:
    """What a peer has written about a part."""

    peer: PeerId
    sequence: int
    part: str
    entry: PartEntry


class View:
    """One member's view."""

    def __init__(
        self, family: Manifest, genesis: Genesis, parts: Sequence[str], signer: Signer, lease: float = LEASE
    ) -> None:
        self._family, self._genesis, self._signer = family, genesis, signer
        self._parts = parts
        self._leases = Leases(lease)
        self._entries: dict[tuple[PeerId, str], PartEntry] = {}
        self._cards: dict[str, list[ExpertCard]] = {part: [] for part in (*parts, *common(family))}  # newest first
        self._terms: dict[str, int] = dict.fromkeys(parts, 0)
        self._refused: dict[Digest, None] = {}  # files that are not experts of the family

    def take_in(self, now: float, records: Iterable[PartRecord]) -> list[RemoteError]:
        """Take in what was read. Returns an error for each author that wrote what no honest peer writes."""
        blamed = []
        for each in records:
            if not self._leases.see(now, each.peer, each.part, each.sequence):
                continue
            try:
                self._check(each)
            except RemoteError as error:
                blamed.append(error)
                self._entries.pop((each.peer, each.part), None)
            else:
                self._note(each)
        return blamed

    def add(self, card: ExpertCard) -> None:
        """Add a card that was checked, or is ours."""
        cards = self._cards[card.part]
        if card.file not in self._refused and all(card.file != each.file for each in cards):
            cards.append(card)
            cards.sort(key=lambda each: (-each.round, each.file))
            del cards[CARDS:]

    def refuse(self, card: ExpertCard) -> None:
        """Ignore the card's file for good: it is not an expert of the family."""
        self.gone(card)
        self._refused[card.file] = None
        if len(self._refused) > MOST_ENTRIES:
            del self._refused[next(iter(self._refused))]

    def gone(self, card: ExpertCard) -> None:
        """Forget the card, as no peer gives its file; it counts again when a peer writes that it has it."""
        self._cards[card.part] = [each for each in self._cards[card.part] if each.file != card.file]

    # -- what follows -----------------------------------------------------------------------------------------

    def reading(self, now: float) -> Reading:
        """The input of the decision which part to train."""
        claims = [self._claim(peer, part) for (peer, part) in self._claimed(now)]
        published = {part: cards[0].round for part in self._parts if (cards := self.cards(part))}
        return Reading(claims, published, self._terms)

    def cards(self, part: str) -> list[ExpertCard]:
        """The cards of a part's available files, as far as is known; the furthest first."""
        return list(self._cards[part])

    def holders(self, now: float, card: ExpertCard) -> list[PeerId]:
        """The peers to ask for the card's file: all that say that they have it, except those whose claim has run out.

        Those are most likely dead, and to find that out by asking takes as long as a lease.
        """
        return [peer for peer in self.announcers(card) if not self._is_lapsed(now, peer)]

    def announcers(self, card: ExpertCard) -> list[PeerId]:
        """The peers whose entries say that they have the card's file."""
        return [peer for (peer, _), entry in self._entries.items() if entry.card and entry.card.file == card.file]

    def answerers(self, now: float, card: ExpertCard) -> list[PeerId]:
        """The peers that answer for the card's file, except those whose claim has run out."""
        said = [peer for (peer, _), entry in self._entries.items() if entry.answers == card.file]
        return sorted(peer for peer in said if not self._is_lapsed(now, peer))

    def owner(self, now: float, part: str) -> tuple[PeerId, PartEntry] | None:
        """The peer that trains a part, and its entry; of several, the one with the highest term."""
        found = [(peer, self._entries[peer, part]) for (peer, each) in self._claimed(now) if each == part]
        return max(found, key=lambda each: (each[1].term, each[0])) if found else None

    def next_free(self, now: float) -> float | None:
        """When the first live claim runs out unless it is renewed; None if there is none."""
        return min((self._leases.runs_out(peer, part) for peer, part in self._claimed(now)), default=None)

    def live(self, now: float) -> list[PeerId]:
        """The peers that have written within a lease."""
        return sorted({peer for peer, part in self._entries if self._leases.lives(now, peer, part)})

    def addresses(self) -> dict[PeerId, tuple[str, ...]]:
        """The addresses of all peers of which an entry was read."""
        return {peer: entry.addresses for (peer, _), entry in self._entries.items()}

    # -- inside -----------------------------------------------------------------------------------------------

    def _check(self, record: PartRecord) -> None:
        if record.part not in self._cards:
            raise RemoteError(f"writes about a part '{record.part[:32]}', which the family has not", record.peer)
        if record.entry.term > MAX_TERM:
            raise RemoteError(f"claims a part for the {record.entry.term}th time", record.peer)
        if (card := record.entry.card) is None:
            return
        if card.part != record.part:
            raise RemoteError(f"shows a card of '{card.part[:32]}' as one of '{record.part}'", record.peer)
        check_card(card, self._family, self._genesis, self._signer, record.peer)

    def _note(self, each: PartRecord) -> None:
        self._entries.pop((each.peer, each.part), None)
        self._entries[each.peer, each.part] = each.entry
        if len(self._entries) > MOST_ENTRIES:
            del self._entries[next(iter(self._entries))]  # the one that was renewed longest ago
        if each.part in self._terms:
            known = max(self._terms[each.part], each.entry.term)
            self._terms[each.part] = min(known, MAX_TERM - 1)  # so that there is always a next term
        if each.entry.card is not None:
            self.add(each.entry.card)

    def _is_lapsed(self, now: float, peer: PeerId) -> bool:
        return any(
            entry.term and not self._leases.lives(now, peer, part)
            for (each, part), entry in self._entries.items()
            if each == peer
        )

    def _claimed(self, now: float) -> list[tuple[PeerId, str]]:
        return [
            (peer, part)
            for (peer, part), entry in self._entries.items()
            if entry.term and self._leases.lives(now, peer, part)
        ]

    def _claim(self, peer: PeerId, part: str) -> Claim:
        entry = self._entries[peer, part]
        return Claim(peer, part, entry.term, entry.card.round if entry.card is not None else 0)
