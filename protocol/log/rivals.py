"""Another branch of the log, where neither goes on from the other: which of the two is the run.

It is the one of the higher rank. A branch that can decide something ranks above one that cannot, as that may never grow
again; else more tokens rank higher. The *rival* is the highest branch above its own that a peer was shown of late.

| rank of what it is shown | what it does |
|---|---|
| not above its own branch | shows its own |
| below the rival | sees to the rival |
| higher, but a member of neither branch shows it | nothing: nobody has signed what is claimed there |
| above the rival, or there is none | checks the way; that is the rival now; tells its branch's voters, and sees to it |
| that of the rival | notes that it was shown again; tells them every RIVAL / 2 seconds, and sees to it |

To see to the rival, which a peer does every second as well: if its own branch may still grow it wants an entry by which
that yields, on which the voters vote while they hear of the rival; else it goes there (`_yield_to_rival` of keeper.py).
What another member has passed on is passed on no further.

Who goes to another branch drops the state of its own, so the members of two branches must not leave each for the other:
nobody would hold either state. A member that holds the state of its branch, and knows of none above it, *promises* with
what it shows that it stays there for STAYING seconds. Who holds a state keeps its own promise, and goes only where it
was promised in the last RELIED seconds that somebody stays. So of two members never both go because of what the other
one has promised: each goes later than it may be relied on, and sooner than the other one may go. The difference of the
two times is for messages that are late. A promise is no help against the death of whoever has given it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.log.register import has_member
from shoal.protocol.messages.log import Register, Shortcut

RIVAL = 5.0  # seconds for which it counts what was shown of another branch
STAYING, RELIED = 4.0, 2.0  # seconds for which a promise to stay is kept, and for which others rely on it

Rank = tuple[bool, int, Digest]  # whether a branch can decide anything, its tokens, and its digest


@dataclass(frozen=True, slots=True)
class Shown:
    """A shortcut as it has come here."""

    shortcut: Shortcut
    shown_by: PeerId
    passed_on_by: PeerId | None = None  # a member of our branch to which it was shown; None: it was shown to us

    @property
    def rank(self) -> Rank:
        """That of the log of who shows it, as it says itself."""
        return self.shortcut.can_decide, self.shortcut.tokens, self.shortcut.branch

    @property
    def sender(self) -> PeerId:
        """From whom it has come, who is to blame if no way leads there."""
        return self.passed_on_by or self.shown_by


class Reaction(Enum):
    """What a peer does about what it is shown."""

    SHOW_OURS = auto()
    NOTHING = auto()
    SEE_TO_IT = auto()  # to the rival
    TELL_VOTERS = auto()  # of the rival, and see to it


class Rivals:
    """The branches above its own that a peer is shown, of which it keeps the highest."""

    def __init__(self) -> None:
        self.best: Shown | None = None
        self._shown_at = self._told_at = -math.inf  # when it last was, and when the other voters were told of one
        self._promised_at = -math.inf  # when it last was that somebody stays there

    def meet(
        self, now: float, shown: Shown, ours: Rank, register: Register, check: Callable[[Shown], None]
    ) -> Reaction:
        """See above; `register` is that of our branch, and `check` raises RemoteError if no way leads to the other."""
        if self.best is not None and self.best.shown_by == shown.shown_by and shown.rank < self.best.rank:
            self.forget()  # so it says itself
        rank, known = shown.rank, self.best.rank if self.best is not None else None
        if rank <= ours:
            return Reaction.SHOW_OURS
        if known is not None and rank < known:
            return Reaction.SEE_TO_IT
        if not (has_member(register, shown.shown_by) or has_member(shown.shortcut.register, shown.shown_by)):
            return Reaction.NOTHING
        if rank != known:
            check(shown)
            if self.best is None or self.best.shortcut.branch != shown.shortcut.branch:
                self._promised_at = -math.inf
            self.best = shown
        self._shown_at = now
        if shown.shortcut.stays:
            self._promised_at = now
        was_told_of = rank == known and now - self._told_at < RIVAL / 2
        if shown.passed_on_by is not None or was_told_of:
            return Reaction.SEE_TO_IT
        self._told_at = now
        return Reaction.TELL_VOTERS

    def lapse(self, now: float) -> None:
        """Forget the rival if it was not shown for long: it may have been left, or have yielded."""
        if now - self._shown_at > RIVAL:
            self.forget()

    def forget(self) -> None:
        """There is none."""
        self.best, self._promised_at = None, -math.inf

    def is_promised(self, now: float, within: float = RELIED) -> bool:
        """Whether a member that holds the rival's state has promised in so many seconds that it stays there."""
        return now - self._promised_at <= within
