"""The simulated network between peers: delay, jitter, loss, duplication and cuts, from one seeded generator.

Jitter reorders: each message draws its own delay. A cut has a direction, so that asymmetric failures are the
simple case and a partition is just many of them. Only a peer with an uplink has a bandwidth.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shoal.protocol.base.ids import PeerId
from tests.simulation.uplink import Detour, Uplink


@dataclass(frozen=True, slots=True)
class Link:
    """How one direction between two peers behaves."""

    delay: float = 0.02  # seconds, at least
    jitter: float = 0.01  # seconds, at most, on top
    loss: float = 0.0  # share of messages that vanish
    duplicate: float = 0.0  # share of messages that arrive twice


LAN = Link(delay=0.0005, jitter=0.002)
WAN = Link(delay=0.04, jitter=0.03)


class Network:
    """Says when, and whether, a message arrives."""

    def __init__(self, rng: random.Random, default: Link) -> None:
        self._rng = rng
        self.default = default
        self._links: dict[tuple[PeerId, PeerId], Link] = {}
        self._cut: set[tuple[PeerId, PeerId]] = set()
        self._loss: float | None = None
        self._rates: dict[PeerId, float] = {}
        self._detours: dict[tuple[PeerId, PeerId], Detour] = {}

    def set_link(self, a: PeerId, b: PeerId, link: Link) -> None:
        """Use `link` in both directions between two peers."""
        self._links[a, b] = self._links[b, a] = link

    def set_uplink(self, peer: PeerId, rate: float) -> None:
        """Let the payloads of `peer`'s next process leave at `rate` bytes per second, in turn; without, at once."""
        self._rates[peer] = rate

    def uplink(self, peer: PeerId) -> Uplink | None:
        """The way out for a process of `peer`; None if the size of its payloads does not matter."""
        return Uplink(self._rates[peer]) if peer in self._rates else None

    def set_detour(self, a: PeerId, b: PeerId, rate: float) -> None:
        """Have the payloads between two peers take a relay, which carries so much in each direction."""
        self._detours[a, b], self._detours[b, a] = Detour(rate), Detour(rate)

    def detour(self, sender: PeerId, to: PeerId) -> Detour | None:
        """The relay between two peers, if they need one."""
        return self._detours.get((sender, to))

    @property
    def relayed(self) -> int:
        """Payloads that took a relay."""
        return sum(each.carried for each in self._detours.values())

    def cut(self, sender: PeerId, to: PeerId) -> None:
        """Lose everything that `sender` sends to `to`, in this direction only."""
        self._cut.add((sender, to))

    def mend(self, sender: PeerId, to: PeerId) -> None:
        """Undo one `cut`."""
        self._cut.discard((sender, to))

    def mend_all(self, pairs: Iterable[tuple[PeerId, PeerId]]) -> None:
        """Undo these cuts."""
        self._cut.difference_update(pairs)

    def partition(self, *groups: Sequence[PeerId]) -> None:
        """Cut every pair of peers that are in different groups, in both directions."""
        for index, group in enumerate(groups):
            for other in groups[index + 1 :]:
                for a in group:
                    for b in other:
                        self.cut(a, b)
                        self.cut(b, a)

    def heal(self) -> None:
        """Undo every cut."""
        self._cut.clear()

    def set_loss(self, share: float | None) -> None:
        """Lose this share of the messages on every link; None: what each link says."""
        self._loss = share

    def connects(self, a: PeerId, b: PeerId) -> bool:
        """Whether messages pass in both directions."""
        return (a, b) not in self._cut and (b, a) not in self._cut

    def arrivals(self, sender: PeerId, to: PeerId) -> tuple[float, ...]:
        """The delays after which copies of one message arrive; none if it is lost."""
        if self._cut and (sender, to) in self._cut:
            return ()
        link = self._links.get((sender, to), self.default) if self._links else self.default
        draw = self._rng.random
        loss = link.loss if self._loss is None else self._loss
        if loss and draw() < loss:
            return ()
        delay = link.delay + link.jitter * draw()
        if link.duplicate and draw() < link.duplicate:
            return delay, delay + link.delay + link.jitter * draw()
        return (delay,)
