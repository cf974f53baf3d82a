"""Suspicions: how long a member that does not answer has before it is declared dead.

There are two kinds. An *accusation* is public: every member's timer runs, longer in larger groups so that a refutation
can arrive, and shorter with each further accuser that found the same by itself (Lifeguard; Dadgar, Phillips, Currey
2017). A *check* is local: the connection closed, or somebody says that the member is dead; we ping it at once, and a
few missed answers decide in about a second. A claim of death is believed without a check only if the suspicion has been
open long enough to be refuted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from shoal.protocol.base.effects import Effect, Tell
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.timers import Timers
from shoal.protocol.membership.dissemination import Dissemination
from shoal.protocol.membership.members import MemberTable, State
from shoal.protocol.messages.membership import Claim

SUSPICION = 3.0  # seconds; times log10(members)
UNCONFIRMED = 2.0  # times as long while nobody else agrees
CONFIRMATIONS = 2  # by others, that make the suspicion as short as possible
CHECK = 0.7  # seconds
CHECK_TRIPS = 6.0  # fastest round trips added to CHECK: the time to connect again
CHECK_HICCUPS = 2.0  # mean round trips added to CHECK, as the other side may be busy
CHECK_MOST = 3.0


@dataclass(slots=True)
class Suspicion:
    """One open suspicion."""

    since: float
    accusers: list[PeerId] = field(default_factory=list)  # none: a local check


class Suspicions:
    """The open suspicions and their deadlines."""

    def __init__(self, table: MemberTable, news: Dissemination, timers: Timers) -> None:
        self._table = table
        self._news = news
        self._timers = timers
        self._open: dict[PeerId, Suspicion] = {}

    def accuse(self, now: float, peer: PeerId, accuser: PeerId) -> list[Effect]:
        """`accuser`, which may be ourselves, found that `peer`, a present member, does not answer."""
        suspicion = self._open.get(peer)
        if suspicion is None:
            suspicion = self._open[peer] = Suspicion(now)
        if accuser in suspicion.accusers or len(suspicion.accusers) > CONFIRMATIONS:
            return []
        effects: list[Effect] = [Tell(event)] if (event := self._table.suspect(now, peer)) else []
        suspicion.accusers.append(accuser)
        self._news.tell_claim(self._claim(peer, dead=False, accuser=accuser))
        return [*effects, *self._settle_by(now, peer, suspicion.since + self._patience(suspicion))]

    def check(self, now: float, peer: PeerId) -> list[Effect]:
        """Decide soon whether `peer`, a present member, is dead, as there is a sign of it. The caller pings it."""
        effects: list[Effect] = [Tell(event)] if (event := self._table.suspect(now, peer)) else []
        self._open.setdefault(peer, Suspicion(now))
        return [*effects, *self._settle_by(now, peer, now + self._check_time(peer))]

    def hear_of_death(self, now: float, claim: Claim) -> list[Effect] | None:
        """Declare `claim.peer` dead as others have; None if it must be checked first."""
        suspicion = self._open.get(claim.peer)
        if suspicion is None or now - suspicion.since < self._check_time(claim.peer):
            return None
        return self.declare_dead(now, claim.peer, claim.accuser)

    def declare_dead(self, now: float, peer: PeerId, accuser: PeerId) -> list[Effect]:
        """End the suspicion of `peer` and declare it dead, if it is present."""
        self.close(peer)
        event = self._table.declare_dead(now, peer)
        if event is None:
            return []
        self._news.tell_claim(self._claim(peer, dead=True, accuser=accuser))
        return [Tell(event)]

    def answered(self, now: float, peer: PeerId, asked_at: float) -> list[Effect]:
        """`peer` answered a question of `asked_at`: that ends a check begun before, but not an accusation."""
        suspicion = self._open.get(peer)
        if suspicion is None or suspicion.accusers or asked_at < suspicion.since:
            return []
        self.close(peer)
        event = self._table.trust(now, peer)
        return [Tell(event)] if event else []

    def time_left(self, now: float, peer: PeerId) -> float:
        """Seconds until the verdict on `peer`."""
        due = self._timers.due("verdict", peer)
        return 0.0 if due is None else max(0.0, due - now)

    def close(self, peer: PeerId) -> None:
        """End the suspicion: the member is known to be alive, gone or dead."""
        self._open.pop(peer, None)
        self._timers.disarm("verdict", peer)
        self._timers.disarm("again", peer)

    def restart(self, now: float) -> list[Effect]:
        """We were stopped ourselves: every suspect gets its whole time again."""
        effects: list[Effect] = []
        for peer, suspicion in self._open.items():
            suspicion.since = now
            patience = self._patience(suspicion) if suspicion.accusers else self._check_time(peer)
            effects.append(self._timers.arm(now, patience, "verdict", peer))
        return effects

    def _settle_by(self, now: float, peer: PeerId, deadline: float) -> list[Effect]:
        """Set or shorten the deadline of a suspicion; it is never made longer."""
        due = self._timers.due("verdict", peer)
        if due is not None and due <= deadline:
            return []
        return [self._timers.arm(now, max(0.0, deadline - now), "verdict", peer)]

    def _patience(self, suspicion: Suspicion) -> float:
        count = len(self._table.present())
        shortest = SUSPICION * max(1.0, math.log10(count + 1))
        possible = min(CONFIRMATIONS, count - 1)  # others who could agree, without us and the suspect
        if possible <= 0:
            return shortest
        agreed = min(possible, len(suspicion.accusers) - 1)
        share = math.log(agreed + 1) / math.log(possible + 1)
        return shortest * (UNCONFIRMED - (UNCONFIRMED - 1.0) * share)

    def _check_time(self, peer: PeerId) -> float:
        member = self._table.get(peer)
        if member is None:
            return CHECK_MOST
        fastest = member.fastest if member.round_trip.samples else self._table.slowest_round_trip()
        return min(CHECK_MOST, CHECK + CHECK_TRIPS * fastest + CHECK_HICCUPS * member.round_trip.mean)

    def _claim(self, peer: PeerId, *, dead: bool, accuser: PeerId) -> Claim:
        member = self._table.get(peer)
        assert member is not None
        assert dead or member.state is State.SUSPECT
        return Claim(peer, member.entry.incarnation, dead, accuser)
