"""The phases of a round at one member, and the peers that it waited for in each.

Pure: the time is passed in. A round that another member joins while it is under way goes through matching and reducing
again, so phases are a list, not a table. The list is bounded: beyond MOST, time is added to existing spans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from shoal.protocol.base.ids import PeerId

LEAST = 0.002  # seconds: shorter spans are left out
MOST = 64  # spans of a round
LOOK = 0.2  # seconds between two checks of whom we wait for, which take time on large models


@dataclass(frozen=True, slots=True)
class Span:
    """The time spent in one phase, after the spans before it in the list."""

    phase: str
    seconds: float


class PhaseLog:
    """The phases of the current round, oldest first."""

    def __init__(self) -> None:
        self._spans: list[Span] = []
        self._phase = ""
        self._since = 0.0
        self._waiting: tuple[PeerId, ...] = ()
        self._looked_at = 0.0
        self._waited: dict[tuple[str, PeerId], float] = {}  # by phase

    def observe(self, now: float, phase: str, waiting_for: Callable[[], Iterable[PeerId]]) -> None:
        """The member is in `phase`; call this after each of its steps."""
        if phase != self._phase or now - self._looked_at >= LOOK:
            self._count(now)
            self._waiting = tuple(waiting_for())
        if phase != self._phase:
            self._close(now)
            self._phase = phase

    def cut(self, now: float) -> tuple[tuple[Span, ...], dict[PeerId, float]]:
        """The spans, and the seconds that we waited for each peer, since the last cut. The phase goes on."""
        self._count(now)
        self._close(now)
        total: dict[PeerId, float] = {}
        for (_, peer), time in self._waited.items():
            total[peer] = total.get(peer, 0.0) + time
        spans, longest = tuple(self._spans), sorted(total.items(), key=lambda item: -item[1])
        waited = {peer: round(time, 3) for peer, time in longest if time >= LEAST}
        self._spans, self._waited = [], {}
        return spans, waited

    def waited(self) -> dict[tuple[str, PeerId], float]:
        """The seconds that we waited for each peer in each phase since the last cut, up to the last check."""
        return dict(self._waited)

    def _count(self, now: float) -> None:
        for peer in self._waiting:
            self._waited[self._phase, peer] = self._waited.get((self._phase, peer), 0.0) + now - self._looked_at
        self._looked_at = now

    def _close(self, now: float) -> None:
        seconds, self._since = round(now - self._since, 3), now
        if not self._phase or seconds < LEAST:
            return
        same = [place for place, span in enumerate(self._spans) if span.phase == self._phase]
        if same and (same[-1] == len(self._spans) - 1 or len(self._spans) >= MOST):
            self._spans[same[-1]] = Span(self._phase, round(self._spans[same[-1]].seconds + seconds, 3))
        else:
            self._spans.append(Span(self._phase, seconds))
