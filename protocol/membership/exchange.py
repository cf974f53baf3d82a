"""The exchange of summaries, by which newcomers learn everything at once, and lost gossip is repaired.

A sends a Summary; B answers with the entries that are later at B, in pages, and with its own Summary, which A
answers in turn. Only differences travel in full. Entries learned in this way are not passed on: the others have them,
or will ask. A death in a summary is a claim like any other: the receiver checks it, and the member concerned can refute
it.
"""

from __future__ import annotations

import random

from shoal.protocol.base.effects import Effect, Send
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.timers import Timers
from shoal.protocol.membership.adaptive_probing import AdaptiveProbing
from shoal.protocol.membership.members import Member, MemberTable, State, age
from shoal.protocol.messages.membership import Claim, Gossip, News, Row, Summary

PAGE = 48  # entries in one message
ALONE_FIRST, ALONE_MOST = 1.0, 15.0  # seconds between tries while we see nobody: the first pause, the longest
SEEDS_AT_ONCE = 3
MAX_ASKED = 16  # peers to whom we have introduced ourselves that are remembered


class Exchange:
    """Decides with whom and when we exchange summaries, and which entries the other side lacks."""

    def __init__(self, table: MemberTable, timers: Timers, probing: AdaptiveProbing, rng: random.Random) -> None:
        self._table = table
        self._timers = timers
        self._probing = probing
        self._rng = rng
        self._seeds: list[PeerId] = []
        self._asked: dict[PeerId, None] = {}  # the last strangers to whom we have introduced ourselves
        self._alone_pause = ALONE_FIRST

    def start(self, now: float, seeds: list[PeerId]) -> list[Effect]:
        """Introduce ourselves to some of `seeds`, and go on until somebody answers."""
        self._seeds = [seed for seed in seeds if seed != self._table.own.peer]
        return self.resume(now)

    def resume(self, now: float) -> list[Effect]:
        """Begin again, with the same seeds."""
        return [*self.ask_somebody(), self._timers.arm(now, ALONE_FIRST, "sync")]

    def ask(self, peer: PeerId) -> Effect:
        """Begin an exchange with `peer`."""
        if self._table.get(peer) is None:
            self._asked.pop(peer, None)
            self._asked[peer] = None
            if len(self._asked) > MAX_ASKED:
                del self._asked[next(iter(self._asked))]
        return self._summary(peer, ask=True)

    def ask_somebody(self) -> list[Effect]:
        """Begin exchanges with a random member and an unknown seed; while we see nobody, with some seeds."""
        present = self._table.present()
        if present:
            strangers = [seed for seed in self._seeds if self._table.get(seed) is None]
            chosen = [self._rng.choice(peers) for peers in (present, strangers) if peers]
        else:
            chosen = self._rng.sample(self._seeds, min(SEEDS_AT_ONCE, len(self._seeds)))
        return [self.ask(peer) for peer in chosen]

    def unanswered(self) -> list[PeerId]:
        """The peers to whom we have introduced ourselves, and of whom we know nothing yet."""
        return [peer for peer in self._asked if self._table.get(peer) is None]

    def sync(self, now: float, _: str) -> list[Effect]:
        """Begin another exchange, on a timer."""
        if self._table.present():
            self._alone_pause = ALONE_FIRST
            pause = self._probing.exchange_pause(now)
        else:
            pause = self._alone_pause
            self._alone_pause = min(ALONE_MOST, 2 * pause)
        return [*self.ask_somebody(), self._timers.arm(now, pause, "sync")]

    def answer(self, sender: PeerId, summary: Summary) -> list[Effect]:
        """Send the entries that the sender of `summary` lacks, and our own summary if it asked for it."""
        known = {row.peer: row for row in summary.rows}
        own = summary.entry  # the sender's, perhaps older than one from an earlier life that we hold
        known[sender] = Row(sender, own.incarnation, own.version, False)
        later = [member for member in self._table if _lacks(known, member)]
        effects: list[Effect] = [
            Send(sender, Gossip(self._table.own, self._page(later[begin : begin + PAGE]), pass_on=False))
            for begin in range(0, len(later), PAGE)
        ]
        if summary.ask:
            effects.append(self._summary(sender, ask=False))
        return effects

    def _summary(self, to: PeerId, *, ask: bool) -> Send:
        return Send(to, Summary(self._table.own, self._table.rows(), ask))

    def _page(self, members: list[Member]) -> News:
        entries = [member.entry for member in members]
        dead = [member.entry for member in members if member.state is State.DEAD]
        deaths = [Claim(entry.peer, entry.incarnation, True, self._table.own.peer) for entry in dead]
        return News(tuple(entries), tuple(deaths))


def deaths(sender: PeerId, summary: Summary) -> list[Claim]:
    """The deaths that a summary claims."""
    return [Claim(row.peer, row.incarnation, True, sender) for row in summary.rows if row.dead]


def _lacks(known: dict[PeerId, Row], member: Member) -> bool:
    row = known.get(member.entry.peer)
    if row is None:
        return member.state is not State.LEFT
    return age(member.entry) > (row.incarnation, row.version)
