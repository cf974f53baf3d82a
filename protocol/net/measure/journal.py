"""The record of what was tried to reach each peer and what came of it, which explains how it is reached, or not. Pure.

Rules:
- A step equal to an earlier one (way, place, code) replaces it and is counted: a peer that is dialled in vain all night
  has one line for each address. The count of failures begins anew when a connection came or was lost.
- It is bounded: MOST_STEPS of MOST_PEERS. The peer with the oldest last step is forgotten first; before all others one
  that has only come and gone, as anybody can do that under any number of PeerIDs.
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
    """What was tried or happened in a step."""

    DIAL = "dial"  # we dialled an address of theirs
    RELAY = "relay"  # we dialled them through a relay
    MEET = "meet"  # both dialled at the same moment (hole punching)
    REVERSAL = "reversal"  # a peer dialled through a relay dialled back normally
    CAME = "came"  # they connected with us
    LOST = "lost"  # the last connection ended
    NAME = "name"  # we looked a host name up, or asked which peer is at an address
    LOOKUP = "lookup"  # we asked the directories of our runs


Key = tuple[Way, str, str]
CHANGES = (Way.DIAL, Way.RELAY, Way.MEET, Way.REVERSAL, Way.CAME, Way.LOST)
THEIRS = (Way.CAME, Way.LOST)  # steps that happen without our doing


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that was tried, `times` times, and how it ended the last time."""

    at: float  # when it ended; seconds since 1970
    way: Way
    where: str  # a multiaddr; for MEET the PeerID of the relay
    code: str = OK
    words: str = ""
    seconds: float = 0.0
    again: float = 0.0  # when it is tried again automatically; 0: never, or not known
    times: int = 1

    @property
    def key(self) -> Key:
        """What equal steps have in common."""
        return self.way, self.where, self.code

    @property
    def is_change(self) -> bool:
        """Whether a connection came or was lost."""
        return self.code == OK and self.way in CHANGES


class Journal:
    """The last steps of the peers for which anything was noted last."""

    def __init__(self) -> None:
        self._steps: OrderedDict[PeerId, OrderedDict[Key, Step]] = OrderedDict()

    def note(self, peer: PeerId, step: Step) -> None:
        """Add a step."""
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
        """The peer to forget first."""
        strangers = (peer for peer, steps in self._steps.items() if all(each.way in THEIRS for each in steps.values()))
        return next(strangers, next(iter(self._steps)))

    def of(self, peer: PeerId) -> tuple[Step, ...]:
        """The steps of a peer, in the order in which each happened last."""
        return tuple(self._steps.get(peer, {}).values())


def _times(steps: Iterable[Step], new: Step) -> int:
    """How often `new` has happened, this time included; a failure, since the last change."""
    times = 0
    for each in steps:
        if each.key == new.key:
            times = each.times
        elif each.is_change and new.code != OK:
            times = 0
    return times + 1
