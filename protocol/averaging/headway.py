"""Who of a group gets ahead, how long each may take, and who is given up.

Rules:
- A member is reminded when it has brought nothing for as long as members usually take. That costs no payload: it sends
  again only what is not on its way.
- It is given up if it lets reminders pass without a sign of life; or if it owes us bytes and, reminder after reminder,
  has sent none to anybody: a slow link moves, a wedged one does not.
- Who waits for others itself is not to blame: its reminders are counted anew. But nobody has to wait for others to
  bring its own contribution.
- What a member says of itself is believed as often as it can be true: it has only so many payloads to move.
- How long members take is learned only from those that were not reminded and did not wait (as Karn and Partridge do,
  SIGCOMM 1987): what was lost, or hung on somebody else, says nothing about a link, and patience would feed itself.
So a link may be as slow as it likes, and nobody waits for ever: there are only so many payloads to move.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from shoal.protocol.averaging.silence import Silence
from shoal.protocol.base.estimate import Estimate
from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.averaging import Progress
from shoal.protocol.messages.replicas import Busy

ANSWER = 1.0  # seconds that a word may take to a member and back
IDLE = 3  # reminders in a row that a member which owes us bytes may answer without having sent any,
STUCK = 8  # and patiences that it may take for that
UNKNOWN = 4.0  # seconds that a member's link is taken to need for a payload before it has brought one,
SLOWEST = 60.0  # and the most that its payloads may take each, before all that counts as silence


class Headway:
    """One member's view of the others."""

    def __init__(
        self, payloads: Mapping[PeerId, int], now: float, pace: Estimate, doubted: Collection[PeerId] = ()
    ) -> None:
        """`payloads`: the members, and how many each may have to move, out or in; the `doubted` must bring some."""
        members = list(payloads)
        self._pace = pace  # of everybody
        self._silence = Silence(members, now)
        self._doubted = doubted
        # how often it is still believed that it gets ahead:
        self._credit = {peer: 0 if peer in doubted else count for peer, count in payloads.items()}
        self.moved = 0  # how often it was, of all of them
        self._brought_at = dict.fromkeys(members, now)
        self._gaps = {peer: Estimate(initial=UNKNOWN, floor=0.0, ceiling=SLOWEST) for peer in members}
        self._sent = dict.fromkeys(members, 0)
        self._taken = dict.fromkeys(members, 0)
        self._idle = dict.fromkeys(members, 0)  # reminders since it got ahead
        self._reminded_at = dict.fromkeys(members, now)
        self._ahead_at = dict.fromkeys(members, now)
        self._queued = dict.fromkeys(members, False)  # whether it answered the last reminder that our bytes wait there
        self._waited = dict.fromkeys(members, False)  # for others, since it last brought something

    def patience(self, peer: PeerId) -> float:
        """How long `peer` may bring nothing before that is strange."""
        return max(self._pace.deadline(), self._gaps[peer].deadline())

    def longest_pause(self, peer: PeerId) -> float:
        """How long what waits at `peer` may stand still: seconds without a payload that leaves it."""
        return STUCK * self.patience(peer)

    def longest_patience(self) -> float:
        """With whoever is slowest, or may be: no less than with a link that nobody knows."""
        return max(self.patience(peer) for peer in self._gaps)

    def is_late(self, now: float, peer: PeerId) -> bool:
        """Whether `peer` has brought nothing for a while, was asked, and has nothing in its queue that moves."""
        is_silent = now - self._brought_at[peer] >= self._pace.deadline()
        was_asked = self._idle[peer] > 0 and now - self._reminded_at[peer] >= ANSWER
        return is_silent and was_asked and not (self._queued[peer] and self._idle[peer] <= IDLE)

    # -- what is heard ----------------------------------------------------------------------------------------

    def hear(self, now: float, peer: PeerId, progress: bool) -> None:
        """A sign of life; progress also teaches how long live members take, and this one.

        A silence longer than our patience may have been a fault of the network: it counts as just that long, so that
        patience grows if they all are slow, and not by one that was cut off for a minute.
        """
        if peer not in self._idle:
            return
        gap = self._silence.hear(now, peer, progress)
        if gap is None:
            return
        if self._idle[peer] == 0 and not self._waited[peer]:
            self._gaps[peer].observe(min(now - self._brought_at[peer], self.patience(peer)))
            self._pace.observe(min(gap, self._pace.deadline()))
        self._brought_at[peer] = self._ahead_at[peer] = now
        self._idle[peer], self._queued[peer], self._waited[peer] = 0, False, False

    def report(self, now: float, peer: PeerId, busy: Busy | Progress, may_wait: bool) -> None:
        """`peer` says how far it has come; `may_wait`: what it owes us may hang on others."""
        waits, has_sent = busy.is_waiting and may_wait, busy.sent > self._sent[peer]
        gets_ahead = self._credit[peer] > 0 and (has_sent or busy.taken > self._taken[peer])
        self._credit[peer] -= gets_ahead
        self.moved += gets_ahead
        if waits or (gets_ahead and has_sent):
            self._idle[peer], self._ahead_at[peer] = 0, now
        self._queued[peer] = busy.is_queued or (self._queued[peer] and not waits)
        self._waited[peer] |= waits
        self._sent[peer] = max(self._sent[peer], busy.sent)
        self._taken[peer] = max(self._taken[peer], busy.taken)

    def wait_anew(self, now: float, payloads: Mapping[PeerId, int]) -> None:
        """Work was shared out anew, which takes so many payloads more: nobody is late with it yet."""
        self._silence.wait_anew(now)
        self._brought_at = dict.fromkeys(self._brought_at, now)
        for peer, count in payloads.items():
            self._credit[peer] += 0 if peer in self._doubted else count

    def take_back(self, now: float, peer: PeerId) -> None:
        """`peer` was given up, and is waited for anew."""
        self._silence.hear(now, peer, progress=False)
        self._idle[peer], self._ahead_at[peer] = 0, now

    # -- what follows -----------------------------------------------------------------------------------------

    def is_due(self, now: float, peer: PeerId) -> bool:
        """Whether `peer` must be reminded now."""
        if not self._silence.is_due(now, peer, self._pace.deadline()):
            return False
        self._idle[peer] += 1
        self._reminded_at[peer], self._queued[peer] = now, False
        return True

    def is_given_up(self, now: float, peer: PeerId, owes_bytes: bool) -> bool:
        """Whether the reminders were enough."""
        is_idle = self._idle[peer] > IDLE and now - self._ahead_at[peer] >= self.longest_pause(peer)
        return self._silence.is_given_up(peer) or (owes_bytes and is_idle)
