"""Families of experts in virtual time: the real cores of many peers over a board that is slow and forgets readings.

A `Peer` does what node/experts/family.py does, without files and processes: it reads, decides, writes, trains a round
every few seconds and publishes. Each of its decisions is checked as it is made.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from shoal.node.experts.claims import LOOK, RENEW, SETTLE, Claim, Claims, Release, Take, Yield, draw
from shoal.node.experts.parts import last_round
from shoal.node.experts.view import PartRecord, View
from shoal.node.manifest.manifest import Manifest, parse_manifest
from shoal.node.manifest.requirements import parameters
from shoal.protocol.base.ids import PeerId, digest
from shoal.protocol.base.signing import signed
from shoal.protocol.messages.directory import ExpertCard, PartEntry
from tests.run_kit import id_of, unsigned
from tests.simulation.promises import Violation
from tests.simulation.signing import FakeSigner

TICK = 0.5  # seconds
DELAY = (0.05, 2.0)  # until what was written can be read
MISSED = 0.05  # share of the entries that a reading lacks
EVERY = 2  # rounds between two files
FOUNDER = PeerId("founder")
SIZE = 100_000  # bytes of a file: what its numbers take, and a little


def family(parts: int, rounds: int) -> Manifest:
    """A manifest with `parts` parts, each trained for `rounds` rounds of one step."""
    tables = "".join(f'[[experts.parts]]\nname = "p{number}"\nonly = ["{number}/*"]\n' for number in range(parts))
    model = "[model]\ndim = 32\nlayers = 1\nheads = 2\nkv_heads = 1\nhidden = 64\n"
    method = '[method]\nname = "experts"\ninner_steps = 1\n'
    return parse_manifest(
        f'name = "sim"\n{model}{method}[experts]\nsteps = {rounds}\npublish_every = {EVERY}\n{tables}'
    )


def card_of(manifest: Manifest, peer: PeerId, part: str, round: int, size: int | None = None) -> ExpertCard:
    """A valid, signed card of an expert."""
    size = 4 * parameters(manifest.model) + 1000 if size is None else size
    file, root = (
        digest(f"test {kind}", peer.encode(), part.encode(), round.to_bytes(4, "little")) for kind in ("file", "root")
    )
    steps = round * manifest.method.inner_steps
    card = ExpertCard(id_of(manifest, FOUNDER), part, round, steps, 10 * round, 1.0, size, file, root, peer, b"")
    return signed(card, FakeSigner(peer))


@dataclass(slots=True)
class Board:
    """What the DHT holds: the last versions of each slot's entry, and when each can first be read."""

    rng: random.Random
    slots: dict[tuple[PeerId, str], list[tuple[float, int, PartEntry]]] = field(default_factory=dict)
    writings: int = 0
    readings: int = 0

    def write(self, now: float, peer: PeerId, part: str, entry: PartEntry) -> None:
        self.writings += 1
        versions = self.slots.setdefault((peer, part), [])
        sequence = versions[-1][1] + 1 if versions else 1
        versions.append((now + self.rng.uniform(*DELAY), sequence, entry))
        del versions[:-3]

    def read(self, now: float) -> list[PartRecord]:
        self.readings += 1
        found = []
        for (peer, part), versions in self.slots.items():
            seen = [(sequence, entry) for at, sequence, entry in versions if at <= now]
            if seen and self.rng.random() >= MISSED:
                found.append(PartRecord(peer, seen[-1][0], part, seen[-1][1]))
        return found


class Peer:
    """One member of the family."""

    def __init__(self, manifest: Manifest, name: PeerId, board: Board, rng: random.Random, now: float) -> None:
        parts = [part.name for part in manifest.experts.parts] if manifest.experts else []
        self.name, self.manifest = name, manifest
        self.view = View(manifest, unsigned(manifest, FOUNDER), parts, FakeSigner(name))
        lasts = {part.name: last_round(manifest, part) for part in manifest.experts.parts} if manifest.experts else {}
        self.claims = Claims(id_of(manifest, FOUNDER), name, lasts)
        self.round = 0
        self.yields = self.takes = 0
        self._board, self._rng = board, rng
        self._read_at, self._written_at, self._trained_at = now + rng.uniform(0, 3), now, now
        self._card: ExpertCard | None = None
        self._told: PartEntry | None = None

    def turn(self, now: float, pace: float) -> None:
        """Do all that is due at `now`."""
        if now >= self._read_at:
            self._look(now)
        self._write(now)
        if self.claims.is_confirmed and now >= self._trained_at + pace:
            self._train(now)

    def _look(self, now: float) -> None:
        others = [each for each in self._board.read(now) if each.peer != self.name]
        if blamed := self.view.take_in(now, others):
            raise Violation("Honesty", f"{self.name} blames {blamed}")
        self._read_at = now + LOOK * self._rng.uniform(0.9, 1.1)
        before, sight = self.claims.mine, self.view.reading(now)
        for decision in self.claims.decide(sight):
            match decision:
                case Yield(to):
                    assert before is not None
                    rivals = [each for each in sight.claims if each.peer == to]  # one that it has left may be seen, too
                    self._check_cause(before, next((each for each in rivals if each.part == before.part), rivals[0]))
                    self.yields += 1
                    self._withdraw(now, before.part)
                case Release():
                    assert before is not None
                    self._withdraw(now, before.part)
                case Take(claim):
                    self.takes += 1
                    self._begin(claim)
        if self.claims.mine is None and (free := self.view.next_free(now)) is not None:
            self._read_at = min(self._read_at, free)

    def _check_cause(self, mine: Claim, rival: Claim) -> None:
        """Violation unless the rival's claim ranks higher; the rule is written anew here, without the cores."""
        if rival.part != mine.part or rival.published < mine.published:
            raise Violation("Cause", f"{self.name} gives up {mine} for {rival}")
        if rival.published == mine.published and rival.term < mine.term:
            raise Violation("Cause", f"{self.name} gives up {mine} for {rival}, which is older")
        if (rival.published, rival.term) == (mine.published, mine.term):
            family = id_of(self.manifest, FOUNDER)
            if draw(family, mine.part, rival.peer) > draw(family, mine.part, mine.peer):
                raise Violation("Cause", f"{self.name} gives up {mine} for {rival}, which lost the draw")

    def _begin(self, claim: Claim) -> None:
        cards = self.view.cards(claim.part)
        self._card = cards[0] if cards else None  # its file is fetched
        self.round = self._card.round if self._card is not None else 0
        self.claims.published(claim.part, self.round)

    def _train(self, now: float) -> None:
        mine = self.claims.mine
        assert mine is not None
        self._trained_at = now
        last = self.claims.lasts[mine.part]
        self.round = min(last, self.round + 1)
        if self.round % EVERY == 0 or self.round == last:
            self._card = card_of(self.manifest, self.name, mine.part, self.round)
            self.view.add(self._card)
            self.claims.published(mine.part, self.round)
            if self.round == last:
                self._read_at = now

    def _write(self, now: float) -> None:
        if (mine := self.claims.mine) is None:
            return
        entry = PartEntry((), mine.term, None, self.round, None, self._card, None)
        is_new = self._told is None or (entry.term, entry.card) != (self._told.term, self._told.card)
        if is_new or now >= self._written_at + RENEW:
            self._board.write(now, self.name, mine.part, entry)
            self._told, self._written_at = entry, now
            if not self.claims.is_confirmed:
                self._read_at = now + SETTLE

    def _withdraw(self, now: float, part: str) -> None:
        self._board.write(now, self.name, part, PartEntry((), 0, None, 0, None, self._card, None))
        self._told = None


class World:
    """Peers that come and go; a round takes them `pace` seconds."""

    def __init__(self, seed: int, parts: int, rounds: int, pace: float = 5.0) -> None:
        self.rng = random.Random(seed)
        self.board = Board(self.rng)
        self.manifest, self.now, self.pace = family(parts, rounds), 0.0, pace
        self.peers: list[Peer] = []
        self.doubled = 0.0  # seconds for which one part was trained by two, summed over parts
        self._born = 0

    def come(self, count: int = 1) -> None:
        for _ in range(count):
            self._born += 1
            self.peers.append(Peer(self.manifest, PeerId(f"peer-{self._born}"), self.board, self.rng, self.now))

    def die(self, peer: Peer) -> None:
        """Remove a peer, without a word from it."""
        self.peers.remove(peer)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += TICK
            for peer in self.rng.sample(self.peers, len(self.peers)):
                peer.turn(self.now, self.pace)
            owners = [peer.claims.mine.part for peer in self.peers if peer.claims.mine and peer.claims.is_confirmed]
            self.doubled += TICK * (len(owners) - len(set(owners)))

    def owners(self) -> dict[str, list[PeerId]]:
        """The living peers that train each part."""
        found: dict[str, list[PeerId]] = {part: [] for part in self.lasts}
        for peer in self.peers:
            if peer.claims.mine is not None and peer.claims.is_confirmed:
                found[peer.claims.mine.part].append(peer.name)
        return found

    @property
    def lasts(self) -> dict[str, int]:
        assert self.manifest.experts is not None
        return {part.name: last_round(self.manifest, part) for part in self.manifest.experts.parts}

    def furthest(self) -> dict[str, int]:
        """For each part, the highest round of a file on the board."""
        found = dict.fromkeys(self.lasts, 0)
        for (_, part), versions in self.board.slots.items():
            found[part] = max([found[part], *(entry.card.round for *_, entry in versions if entry.card)])
        return found
