"""What was tried towards each peer, and what came of it: for whoever asks why a peer is reached as it is, or not. Pure.

Rules:
- A step that is the same as one before (way, place, outcome) takes its place and is counted: who is dialled in vain all
  night has one line for each address. Failures are counted anew once a connection came or was lost.
- It is bounded: MOST_STEPS of MOST_PEERS. The peer of which nothing was noted for longest is forgotten first; before
  all others, one that only came and went: anybody can, under as many names as it likes.
- Codes are for programs, and keep their meaning; words are for people.

    ok               it worked                      other-identity  somebody else answers there
    refused          nothing listens there          unresolved      the name cannot be looked up
    silent           no answer in time              overtaken       another way was faster
    unreachable      there is no way there          no-place-here   our router gives each destination another port
    reset            the connection was cut         no-place-there  theirs does; no-place-both: both
    failed           anything else                  too-often       so many dials there failed that we wait
    itself           we answer there ourselves      no-place-yet    one of the two does not know where it can be met
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from shoal.protocol.base.ids import PeerId

MOST_STEPS, MOST_PEERS = 16, 128
OK, OTHER, ITSELF, TOO_OFTEN = "ok", "other-identity", "itself", "too-often"


class Way(StrEnum):
    """What a step was."""

    DIAL = "dial"  # we dialled an address of theirs
    RELAY = "relay"  # we asked a relay to connect us
    MEET = "meet"  # both dialled at the same moment
    REVERSAL = "reversal"  # who was called by a relay dialled back plainly
    CAME = "came"  # they connected with us
    LOST = "lost"  # the last connection ended
    NAME = "name"  # we looked a host's name up, or asked who is at an address
    LOOKUP = "lookup"  # we asked the directories of our runs


Key = tuple[Way, str, str]
CHANGES = (Way.DIAL, Way.RELAY, Way.MEET, Way.REVERSAL, Way.CAME, Way.LOST)
THEIRS = (Way.CAME, Way.LOST)  # what happens to us


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that was tried, `times` times, and how it ended the last time."""

    at: float  # when it ended; seconds since 1970
    way: Way
    where: str  # a multiaddr; of those who met, the relay's PeerID
    code: str = OK
    words: str = ""
    seconds: float = 0.0
    again: float = 0.0  # when it is tried again by itself; 0: not, or nobody knows
    times: int = 1

    @property
    def key(self) -> Key:
        """The same of steps that are the same."""
        return self.way, self.where, self.code

    @property
    def is_change(self) -> bool:
        """Whether a connection came or was lost."""
        return self.code == OK and self.way in CHANGES


class Journal:
    """The last steps towards the last peers."""

    def __init__(self) -> None:
        self._steps: OrderedDict[PeerId, OrderedDict[Key, Step]] = OrderedDict()

    def note(self, peer: PeerId, step: Step) -> None:
        """Something was tried."""
        steps = self._steps.setdefault(peer, OrderedDict())
        self._steps.move_to_end(peer)
        times = _times(steps.values(), step)
        steps.pop(step.key, None)
        steps[step.key] = replace(step, times=times)
        if len(steps) > MOST_STEPS:
            steps.popitem(last=False)
        if len(self._steps) > MOST_PEERS:
            del self._steps[self._least()]

    def _least(self) -> PeerId:
        """Whose steps are missed least."""
        strangers = (peer for peer, steps in self._steps.items() if all(each.way in THEIRS for each in steps.values()))
        return next(strangers, next(iter(self._steps)))

    def of(self, peer: PeerId) -> tuple[Step, ...]:
        """What was tried towards a peer, in the order of the last times."""
        return tuple(self._steps.get(peer, {}).values())


def _times(steps: Iterable[Step], new: Step) -> int:
    """How often `new` has come now; as a failure, since there was last a change."""
    times = 0
    for each in steps:
        if each.key == new.key:
            times = each.times
        elif each.is_change and new.code != OK:
            times = 0
    return times + 1
