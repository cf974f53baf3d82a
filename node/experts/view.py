"""What a member has read about its family in the DHT: live claims, files, and who has them.

Pure: entries go in with the time at which they were read. A peer that shows a bad one is named, and its entry does not
count. Entries are remembered: a reading that misses somebody proves nothing, and a card outlives the claim of its
author. A file that could not be fetched does not count until somebody writes again that it has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shoal.node.experts.card import check_card
from shoal.node.experts.claims import LEASE, Claim, Leases, Sight
from shoal.node.experts.parts import common
from shoal.node.manifest.manifest import Manifest
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.base.signing import Signer
from shoal.protocol.messages.directory import ExpertCard, PartEntry

CARDS = 4  # of a part that are remembered: the newest
MOST_ENTRIES = 2048
MAX_TERM = 2**31  # of a claim: nobody gets there by counting


@dataclass(frozen=True, slots=True)
class Listed:
    """What somebody has written about a part."""

    peer: PeerId
    sequence: int
    part: str
    entry: PartEntry


class View:
    """One member's. `author` has signed the manifest."""

    def __init__(
        self, family: Manifest, author: PeerId, parts: Sequence[str], signer: Signer, lease: float = LEASE
    ) -> None:
        self._family, self._author, self._signer = family, author, signer
        self._parts = parts
        self._leases = Leases(lease)
        self._entries: dict[tuple[PeerId, str], PartEntry] = {}
        self._cards: dict[str, list[ExpertCard]] = {part: [] for part in (*parts, *common(family))}  # newest first
        self._terms: dict[str, int] = dict.fromkeys(parts, 0)
        self._refused: dict[Digest, None] = {}  # files that are none of ours

    def take_in(self, now: float, listed: Iterable[Listed]) -> list[RemoteError]:
        """What was read; who of the authors has written what no honest peer writes."""
        blamed = []
        for each in listed:
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
        """A card that was checked, or is ours."""
        cards = self._cards[card.part]
        if card.file not in self._refused and all(card.file != each.file for each in cards):
            cards.append(card)
            cards.sort(key=lambda each: (-each.round, each.file))
            del cards[CARDS:]

    def refuse(self, card: ExpertCard) -> None:
        """The card's file is no expert."""
        self.gone(card)
        self._refused[card.file] = None
        if len(self._refused) > MOST_ENTRIES:
            del self._refused[next(iter(self._refused))]

    def gone(self, card: ExpertCard) -> None:
        """Nobody gives the card's file: it counts again once somebody writes anew of it."""
        self._cards[card.part] = [each for each in self._cards[card.part] if each.file != card.file]

    # -- what follows -----------------------------------------------------------------------------------------

    def sight(self, now: float) -> Sight:
        """For the decision which part to train."""
        claims = [self._claim(peer, part) for (peer, part) in self._claimed(now)]
        published = {part: cards[0].round for part in self._parts if (cards := self.cards(part))}
        return Sight(claims, published, self._terms)

    def cards(self, part: str) -> list[ExpertCard]:
        """Those whose files are to be had, as far as we know; the furthest first."""
        return list(self._cards[part])

    def holders(self, now: float, card: ExpertCard) -> list[PeerId]:
        """Who may be asked for the card's file: all who say that they have it, but for those whose claim has run out.

        These are dead, most likely, and to find that out by asking takes as long as a lease.
        """
        return [peer for peer in self.tellers(card) if not self._is_lapsed(now, peer)]

    def tellers(self, card: ExpertCard) -> list[PeerId]:
        """Who says so in an entry."""
        return [peer for (peer, _), entry in self._entries.items() if entry.card and entry.card.file == card.file]

    def answerers(self, now: float, card: ExpertCard) -> list[PeerId]:
        """Who says that the expert of the card's file can be asked there, but for those whose claim has run out."""
        said = [peer for (peer, _), entry in self._entries.items() if entry.answers == card.file]
        return sorted(peer for peer in said if not self._is_lapsed(now, peer))

    def owner(self, now: float, part: str) -> tuple[PeerId, PartEntry] | None:
        """Who trains a part, and what it says of it; of several, whose claim has the highest term."""
        found = [(peer, self._entries[peer, part]) for (peer, each) in self._claimed(now) if each == part]
        return max(found, key=lambda each: (each[1].term, each[0])) if found else None

    def next_free(self, now: float) -> float | None:
        """When the first of the claims that live runs out, if it is not renewed; None if there are none."""
        return min((self._leases.runs_out(peer, part) for peer, part in self._claimed(now)), default=None)

    def live(self, now: float) -> list[PeerId]:
        """Those who have written lately."""
        return sorted({peer for peer, part in self._entries if self._leases.lives(now, peer, part)})

    def addresses(self) -> dict[PeerId, tuple[str, ...]]:
        """Where all are of whom anything was read."""
        return {peer: entry.addresses for (peer, _), entry in self._entries.items()}

    # -- inside -----------------------------------------------------------------------------------------------

    def _check(self, listed: Listed) -> None:
        if listed.part not in self._cards:
            raise RemoteError(f"writes about a part '{listed.part[:32]}', which the family has not", listed.peer)
        if listed.entry.term > MAX_TERM:
            raise RemoteError(f"claims a part for the {listed.entry.term}th time", listed.peer)
        if (card := listed.entry.card) is None:
            return
        if card.part != listed.part:
            raise RemoteError(f"shows a card of '{card.part[:32]}' as one of '{listed.part}'", listed.peer)
        check_card(card, self._family, self._author, self._signer, listed.peer)

    def _note(self, each: Listed) -> None:
        self._entries.pop((each.peer, each.part), None)
        self._entries[each.peer, each.part] = each.entry
        if len(self._entries) > MOST_ENTRIES:
            del self._entries[next(iter(self._entries))]  # nobody has said less lately
        if each.part in self._terms:
            known = max(self._terms[each.part], each.entry.term)
            self._terms[each.part] = min(known, MAX_TERM - 1)  # so that there is always a next one
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
