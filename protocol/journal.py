"""What was tried towards each peer, and what came of it: for whoever asks why a peer is reached as it is, or not. Pure.

Rules:
- A step that is the same as one before (way, place, outcome) takes its place and is counted: who is dialled in vain all
  night has one line for each address.
- It is bounded: MOST_STEPS of MOST_PEERS. The peer towards which nothing was tried for longest is forgotten first.
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
from dataclasses import dataclass, replace
from enum import StrEnum

from shoal.protocol.ids import PeerId

MOST_STEPS, MOST_PEERS = 16, 128
OK = "ok"


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


class Journal:
    """The last steps towards the last peers."""

    def __init__(self) -> None:
        self._steps: OrderedDict[PeerId, OrderedDict[tuple[Way, str, str], Step]] = OrderedDict()

    def note(self, peer: PeerId, step: Step) -> None:
        """Something was tried."""
        steps = self._steps.setdefault(peer, OrderedDict())
        self._steps.move_to_end(peer)
        key = step.way, step.where, step.code
        before = steps.pop(key, None)
        steps[key] = replace(step, times=before.times + 1) if before is not None else step
        if len(steps) > MOST_STEPS:
            steps.popitem(last=False)
        if len(self._steps) > MOST_PEERS:
            self._steps.popitem(last=False)

    def of(self, peer: PeerId) -> tuple[Step, ...]:
        """What was tried towards a peer, in the order of the last times."""
        return tuple(self._steps.get(peer, {}).values())
