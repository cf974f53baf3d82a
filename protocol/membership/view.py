"""The read side of membership, for rounds, state transfer and the web page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from shoal.protocol.base.ids import PeerId
from shoal.protocol.membership.members import PRESENT, MemberTable, State
from shoal.protocol.messages.membership import Entry, RunStatus


class Statuses(Protocol):
    """The statuses that members give of themselves."""

    def status(self, peer: PeerId) -> RunStatus | None: ...


def without_relay(me: PeerId, peers: Sequence[PeerId], view: Statuses) -> Sequence[PeerId]:
    """The peers that we reach without a relay: the public ones, or all if we are public. If there are none, all."""

    def is_public(peer: PeerId) -> bool:
        status = view.status(peer)
        return status is not None and status.reachability == "public"

    return peers if is_public(me) else [peer for peer in peers if is_public(peer)] or peers


def fastest(peers: Iterable[PeerId], view: Statuses) -> list[PeerId]:
    """The peers by the uplink rates in their statuses, fastest first; those without a rate last, in their order."""

    def up(peer: PeerId) -> int:
        status = view.status(peer)
        return status.up if status is not None else 0

    return sorted(peers, key=up, reverse=True)


class View(Statuses, Protocol):
    """What rounds, the log and state transfer need to know of membership."""

    def alive(self) -> Sequence[PeerId]:
        """Live members without ourselves, in a fixed order."""

    def is_alive(self, peer: PeerId) -> bool: ...


class MembershipView:
    """Queries about the members of one run."""

    def __init__(self, table: MemberTable) -> None:
        self._table = table

    def alive(self) -> list[PeerId]:
        """The other members that are not known to be dead or gone, suspects included; sorted."""
        return list(self._table.present())

    def is_alive(self, peer: PeerId) -> bool:
        """Whether `peer` is in `alive()`."""
        return self.state(peer) in PRESENT

    def is_suspect(self, peer: PeerId) -> bool:
        """Whether `peer` does not answer and has not refuted that yet."""
        return self.state(peer) is State.SUSPECT

    def state(self, peer: PeerId) -> State | None:
        """The state of another member as we see it; None if we do not know it."""
        member = self._table.get(peer)
        return None if member is None else member.state

    def entry(self, peer: PeerId) -> Entry | None:
        """The latest entry of `peer`, which may be ourselves: addresses, incarnation, status."""
        if peer == self._table.own.peer:
            return self._table.own
        member = self._table.get(peer)
        return None if member is None else member.entry

    def status(self, peer: PeerId) -> RunStatus | None:
        """The latest status of `peer`, which may be ourselves."""
        entry = self.entry(peer)
        return None if entry is None else entry.status

    def lost_since(self, time: float) -> list[PeerId]:
        """Members that died (did not leave) since `time` and are not back; sorted. Evidence for SPLIT."""
        dead = [member for member in self._table if member.state is State.DEAD and member.since >= time]
        return sorted(member.entry.peer for member in dead)

    def gone(self) -> list[PeerId]:
        """Members that have left with a goodbye and are not back; the last to go first."""
        left = [member for member in self._table if member.state is State.LEFT]
        return [member.entry.peer for member in sorted(left, key=lambda member: -member.since)]
