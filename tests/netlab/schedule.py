"""What befalls a run, and when: drawn from a seed, and from nothing else.

Events are dealt from a deck that is shuffled again when it is used up, so that each kind occurs as often as it should.
One card in twenty is a double fault: two events that begin together, and that concern different peers.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

LONGEST = {  # seconds for which an event lasts, at most
    "kill": 10.0,  # SIGKILL; it is started again
    "stop": 10.0,  # an orderly stop; it is started again
    "pause": 15.0,
    "cut": 30.0,  # of one to three peers from the others
    "full disk": 20.0,
    "join": 0.0,  # a newcomer, by the run's link
    "leave": 0.0,  # for good
}
DECK = (
    *("kill",) * 4,
    *("stop",) * 3,
    *("cut",) * 3,
    *("pause",) * 2,
    *("full disk",) * 3,
    *("join", "leave") * 2,
    "double",
)
FAULTS = ("kill", "stop", "pause", "full disk")  # which may befall two peers at once, or one while others are cut off
MOST_CUT = 3
MOST_REST = 5.0  # seconds from the end of an event to the next one


@dataclass(frozen=True)
class Event:
    """Something that befalls peers, which are numbered in the order in which they first came."""

    kind: str
    peers: tuple[int, ...]
    seconds: float

    def __str__(self) -> str:
        lasting = f" for {self.seconds:.0f} s" if self.seconds else ""
        return f"{self.kind} {'+'.join(map(str, self.peers))}{lasting}"


@dataclass(frozen=True)
class Turn:
    """One event, or two that begin together, and the seconds until the next turn once they are over."""

    events: tuple[Event, ...]
    rest: float


def turns(seed: int, count: int) -> Iterator[Turn]:
    """What befalls a run that begins with so many peers, without end."""
    chance = random.Random(seed)
    members, newcomer = list(range(count)), count
    while True:
        for kind in chance.sample(DECK, len(DECK)):
            kinds = [chance.choice((*FAULTS, "cut")), chance.choice(FAULTS)] if kind == "double" else [kind]
            events = _events(chance, kinds, members, newcomer)
            if kind == "join":
                members.append(newcomer)
                newcomer += 1
            elif kind == "leave":
                members.remove(events[0].peers[0])
            yield Turn(events, chance.uniform(0.0, MOST_REST))


def _events(chance: random.Random, kinds: list[str], members: list[int], newcomer: int) -> tuple[Event, ...]:
    """Events of these kinds, no two of which concern the same peer."""
    free = chance.sample(members, len(members))
    events = []
    for kind in kinds:
        count = chance.randint(1, min(MOST_CUT, len(members) // 2)) if kind == "cut" else 1
        peers = [newcomer] if kind == "join" else [free.pop() for _ in range(min(count, len(free)))]
        events.append(Event(kind, tuple(sorted(peers)), chance.uniform(0.0, LONGEST[kind])))
    return tuple(events)
