"""Reads a member's state, for both kinds of runs: with an agreed state, or with replicas."""

from __future__ import annotations

from collections.abc import Iterable

from shoal.protocol.base.ids import Digest, PeerId
from shoal.protocol.member.member import Member
from shoal.protocol.replicas.member import ReplicaMember

AnyMember = Member | ReplicaMember


def base_of(member: AnyMember) -> int | None:
    """The round that the next one builds on; None while we have no state."""
    if isinstance(member, ReplicaMember):
        return member.base
    base = member.rounds.base
    return base.round if base is not None else None


def waited_for(member: AnyMember) -> Iterable[PeerId]:
    """The peers that the round waits for."""
    return member.waiting_for() if isinstance(member, ReplicaMember) else member.rounds.waiting_for()


def downloaded(member: AnyMember) -> tuple[int, int]:
    """(chunks here, chunks in all) of the state that is being downloaded; (0, 0) if none is yet."""
    return (member.copying if isinstance(member, ReplicaMember) else member.transfer).progress()


def history_of(member: AnyMember) -> Digest:
    """The history digest of all decided rounds; with replicas it is constant."""
    if isinstance(member, ReplicaMember) or member.rounds.base is None:
        return member.status.history
    return member.rounds.base.history


def history_after(member: AnyMember, round: int) -> Digest | None:
    """The history digest after a decided round; None if we do not know that round's decision."""
    if isinstance(member, ReplicaMember):
        return member.status.history
    return member.certified.history(round)
