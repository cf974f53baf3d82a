"""What the driver and the page read of a member, for both kinds of runs: with an agreed state, or with replicas."""

from __future__ import annotations

from collections.abc import Iterable

from shoal.protocol.base.ids import NO_DIGEST, Digest, PeerId
from shoal.protocol.member.member import Member
from shoal.protocol.replicas.member import ReplicaMember

AnyMember = Member | ReplicaMember


def base_of(member: AnyMember) -> int | None:
    """The round that the next one builds on; None while there is none."""
    if isinstance(member, ReplicaMember):
        return member.base
    base = member.rounds.base
    return base.round if base is not None else None


def waited_for(member: AnyMember) -> Iterable[PeerId]:
    """Whom the round hangs on."""
    return member.waiting_for() if isinstance(member, ReplicaMember) else member.rounds.waiting_for()


def history_of(member: AnyMember) -> Digest:
    """The digest of all that was decided; of replicas a constant of the run."""
    if isinstance(member, ReplicaMember) or member.rounds.base is None:
        return member.status.history
    return member.rounds.base.history


def history_after(member: AnyMember, round: int) -> Digest | None:
    """The same after a round that we know to be decided."""
    if isinstance(member, ReplicaMember):
        return member.status.history
    history = member.history
    if not history.origin.round <= round <= history.newest:
        return None
    return history.base(round, NO_DIGEST).history
