"""A leader's collection of JOINs, and what it makes of them: a roster, or the reason why not yet.

Rules:
- It waits for all who are expected. When the learned patience is over it calls the missing to hand in what they have;
  after as long again it closes without them. Without a quorum, or with too few members, it never closes.
- A policy may give the slow some slack: so much patience at least, and nobody hands in early for less.
- Perhaps the missing follow another, whom they take for the first live voter. So a leader that has waited for long
  without a quorum calls them away, to the next attempt, in which all choose anew. Sooner, and without disturbing any
  who train, it tells voters where it is: who is in a higher attempt says so.
- One JOIN of each peer is kept, that of its highest attempt; JOINs of attempts that are over count for nothing.
- A roster is one message, and a signed JOIN cannot be shortened. So the JOINs of those without a vote, who may claim to
  have prepared anything, are bounded together: if they are too much, whoever brings most is left out.
- Who stands on another root than we is a stray: not in our group. If a quorum stands together on another root than
  ours, the stray is we.
- A group needs a quorum of the last round's voters, enough members, somebody who contributes, and a quorum of those
  who may have decided already, whose value it must then adopt.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shoal.protocol.base.ids import Digest, PeerId, short
from shoal.protocol.base.signing import signed
from shoal.protocol.base.wire import MAX_CONTROL_FRAME, encode
from shoal.protocol.messages.rounds import Join, Leave, Roster
from shoal.protocol.rounds.agreement.quorum import is_quorum
from shoal.protocol.rounds.agreement.roster import MAX_MEMBERS, Base, answers, rank
from shoal.protocol.rounds.agreement.voting import left_before, may_matter, must_propose
from shoal.protocol.rounds.matchmaking.context import Means

STRANGERS_BYTES = MAX_CONTROL_FRAME // 2  # of all JOINs of those without a vote
CLOSE, CALL_AWAY = 2, 3  # patiences until a leader closes without the missing; until it calls them away from others
MAX_NAMED = 8  # of those who are missing
UNDERWAY = 1.0  # seconds that a JOIN may take
HAND_IN = 0  # the attempt in a Call that is meant for those who are still training


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is to be done about a group: close it, or call `missing`, or just wait."""

    roster: Roster | None = None
    reason: str = ""  # why it cannot be closed
    call: int | None = None  # the attempt to call `missing` to
    missing: tuple[PeerId, ...] = ()
    elsewhere: tuple[PeerId, ...] = ()  # who may be in another attempt, and is to hear of ours


class Gathering:
    """The JOINs of one round that were sent to us."""

    def __init__(self, means: Means, base: Base) -> None:
        self._me = means.me
        self._part = means.part
        self._policy = means.policy
        self._signer = means.signer
        self._spread = means.spread
        self._base = base
        self._called_away_at = -math.inf
        self._has_called = False  # the missing, to hand in
        self._has_told = False  # missing voters where we are
        self._joins: dict[PeerId, Join] = {}
        self._strays: dict[PeerId, Join] = {}  # without what they have prepared: no roster takes them
        self._sure = frozenset((*base.voters, means.me))  # of their place, whatever they bring
        self._sizes: dict[PeerId, int] = {}  # in bytes, of the JOINs of all others
        self._strangers_bytes = 0
        self.opened_at: float | None = None  # when the first JOIN that still matters came

    def __repr__(self) -> str:
        return f"Gathering(joins={len(self._joins)}, strays={len(self._strays)})"

    def add(self, now: float, join: Join) -> bool:
        """Keep a JOIN that was checked; whether there is room for it."""
        fits, strays = join.base_root == self._base.root, self._strays
        kept, other = (self._joins, strays) if fits else (strays, self._joins)
        if join.peer not in kept and len(kept) >= MAX_MEMBERS:
            return False
        known = kept.get(join.peer)
        if known is None or join.attempt > known.attempt:
            kept[join.peer] = join if fits else dataclasses.replace(join, prepared=None)
            other.pop(join.peer, None)
            self._make_room(join.peer, len(encode(join)) if fits else 0)
        if join.peer not in kept:
            return False
        if self.opened_at is None:
            self.opened_at = now
        return True

    def patience(self) -> float:
        """Seconds that those who still train are waited for before they are called to hand in."""
        return max(self._spread.deadline(), self._policy.slack)

    def restart(self) -> None:
        """Another attempt: the waiting begins anew with the next JOIN."""
        self.opened_at, self._called_away_at = None, -math.inf
        self._has_called = self._has_told = False

    def peers(self) -> list[PeerId]:
        """Everybody who sent us a JOIN, strays included."""
        return [peer for peer in (*self._joins, *self._strays) if peer != self._me]

    def strays(self) -> list[PeerId]:
        """Those who stand on another root."""
        return list(self._strays)

    def highest(self) -> int:
        """The highest attempt of all JOINs."""
        return max((join.attempt for join in (*self._joins.values(), *self._strays.values())), default=0)

    def below(self, attempt: int) -> list[PeerId]:
        """Those whose last JOIN to us was for an earlier attempt."""
        joins = (*self._joins.values(), *self._strays.values())
        return [join.peer for join in joins if join.attempt < attempt and join.peer != self._me]

    def present(self, attempt: int) -> dict[PeerId, Join]:
        """The JOINs to `attempt`."""
        return {peer: join for peer, join in self._joins.items() if join.attempt == attempt}

    def missing(self, attempt: int, expected: Sequence[PeerId]) -> list[PeerId]:
        """Those of `expected` whose JOIN to `attempt` is not here."""
        present = self.present(attempt)
        return [peer for peer in expected if peer not in present and peer not in self._strays]

    def are_we_astray(self) -> bool:
        """Whether a quorum of the voters stands on one root that is not ours."""
        camps: dict[Digest, list[PeerId]] = {}
        for peer, join in self._strays.items():
            camps.setdefault(join.base_root, []).append(peer)
        return any(is_quorum(camp, self._base.voters) for camp in camps.values())

    def can_do_without_us(self, expected: Iterable[PeerId], leaves: Sequence[Leave]) -> bool:
        """Whether those of `expected` whose JOINs are here could go on together, were they in one attempt."""
        joins = {peer: self._joins[peer] for peer in expected if peer in self._joins}
        return bool(joins) and not self._obstacle(joins, may_matter(answers(joins.values()), leaves, self._base.voters))

    def look(self, now: float, attempt: int, expected: Sequence[PeerId], leaves: Sequence[Leave]) -> Outlook:
        """What is to be done about the group of `attempt`, for which we wait for `expected`."""
        assert self.opened_at is not None
        present = self.present(attempt)
        missing = tuple(self.missing(attempt, expected))
        waited = now - self.opened_at
        leaves = may_matter(answers(present.values()), left_before(leaves, attempt), self._base.voters)
        reason = self._obstacle(present, leaves)
        if not reason and (not missing or waited >= CLOSE * self.patience()):
            if not missing:
                self._spread.observe(waited)
            return Outlook(roster=self._roster(present, attempt, leaves))
        elsewhere: tuple[PeerId, ...] = ()
        if reason and waited >= UNDERWAY and not self._has_told:
            self._has_told, elsewhere = True, tuple(peer for peer in missing if peer in self._base.voters)
        return Outlook(None, reason, self._call(now, attempt, waited, bool(reason)), missing, elsewhere)

    # -- inside ---------------------------------------------------------------------------------------------

    def _make_room(self, peer: PeerId, size: int) -> None:
        """Note what a JOIN brings; while voteless ones bring too much, whoever brings most goes, latest first."""
        if peer not in self._sure:
            self._weigh(peer, size)
        while self._strangers_bytes > STRANGERS_BYTES:
            largest = max(reversed(self._sizes), key=self._sizes.__getitem__)
            del self._joins[largest]
            self._weigh(largest, 0)

    def _weigh(self, peer: PeerId, size: int) -> None:
        self._strangers_bytes += size - self._sizes.pop(peer, 0)
        if size:
            self._sizes[peer] = size

    def _call(self, now: float, attempt: int, waited: float, is_stuck: bool) -> int | None:
        too_long = CALL_AWAY * self._spread.deadline()  # without slack: who follows another does not train
        if is_stuck and waited >= too_long and now - self._called_away_at >= too_long:
            self._called_away_at = now
            return attempt
        if not self._has_called and waited >= self.patience():
            self._has_called = True
            return HAND_IN
        return None

    def _obstacle(self, present: dict[PeerId, Join], leaves: Sequence[Leave]) -> str:
        """Why no group can be made of those present; empty if one can."""
        needed = self._policy.members_needed(self._base.round + 1)
        left, answered = [leave.peer for leave in leaves], answers(present.values())
        if not is_quorum(answered, self._base.voters, left):
            voters = [voter for voter in self._base.voters if voter not in left]
            absent = [short(voter) for voter in voters if voter not in answered]
            names = ", ".join(absent[:MAX_NAMED]) + (", ..." if len(absent) > MAX_NAMED else "")
            return f"no quorum with {len(absent)} of {len(voters)} voters absent ({names})"
        if len(present) < needed:
            return f"{len(present)} of at least {needed} members are here"
        adopted = must_propose(answered, leaves, self._base.voters)
        if adopted is not None and not is_quorum(answered, adopted.proposal.voters, left):
            return "no quorum of those who may have decided already"
        if adopted is None and not any(join.weight for join in present.values()):
            return "nobody here has trained anything yet"
        return ""

    def _roster(self, present: dict[PeerId, Join], attempt: int, leaves: Sequence[Leave]) -> Roster:
        joins = tuple(present[peer] for peer in rank(self._base, attempt, present))
        roster = Roster(self._base.round + 1, self._part, attempt, self._me, joins, tuple(leaves), b"")
        return signed(roster, self._signer)
