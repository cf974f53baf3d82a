"""A small group of peers with valid messages of a round, for tests that then spoil one thing."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from shoal.protocol.base.effects import Effect, Send, Tell
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import Digest, PeerId, digest, result_hash
from shoal.protocol.base.signing import signed
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.rounds import (
    Ballot,
    Certificate,
    ChunkRef,
    Join,
    Leave,
    Prepared,
    PreparedValue,
    Roster,
    Vote,
)
from shoal.protocol.rounds.agreement.certificate import make_proposal, mask_of, next_history, proposal_digest
from shoal.protocol.rounds.agreement.roster import Base, Plan, Policy, make_plan, rank
from tests.simulation.signing import FakeSigner

A, B, C, D = (PeerId(name) for name in ("a", "b", "c", "d"))
PEERS = (A, B, C)
STRANGER = PeerId("x")
CHUNKS = 3
POLICY = Policy(min_members=2, start_members=2, max_group=64, max_weight=1000, chunks=(CHUNKS,))
BASE = Base(4, digest("test history"), digest("test root"), PEERS)
ROUND = BASE.round + 1
SIGNER = FakeSigner(A)


def join(peer: PeerId, leader: PeerId, attempt: int = 1, **changes: Any) -> Join:
    """A signed JOIN: valid, except for `changes`."""
    sound = Join(ROUND, 0, attempt, leader, peer, BASE.history, BASE.root, 10, 0, 0, True, (), True, None, b"")
    return signed(dataclasses.replace(sound, **changes), FakeSigner(peer))


def roster(members: Sequence[PeerId] = PEERS, attempt: int = 1, **changes: Any) -> Roster:
    """A signed roster of `members`, led by the first in rank: valid, except for `changes`."""
    order = rank(BASE, attempt, members)
    joins = tuple(join(peer, order[0], attempt) for peer in order)
    sound = Roster(ROUND, 0, attempt, order[0], joins, (), b"")
    spoilt = dataclasses.replace(sound, **changes)
    return signed(spoilt, FakeSigner(spoilt.leader))


def plan(members: Sequence[PeerId] = PEERS) -> Plan:
    """The plan that follows from the roster of `members`."""
    return make_plan(roster(members), POLICY)


def refs(mask: bytes = mask_of(PEERS, PEERS)) -> tuple[ChunkRef, ...]:
    """References to the chunks of a result."""
    return tuple(ChunkRef(result_hash(mask, b"mean %d" % chunk), mask) for chunk in range(CHUNKS))


def value(ballot: Ballot | None = None, chunks: tuple[ChunkRef, ...] = refs()) -> PreparedValue:
    """A prepared value of the group of all PEERS."""
    group = plan()
    ballot = ballot or Ballot(1, 0, group.leader)
    return PreparedValue(ballot, make_proposal(group, BASE, chunks, ()), chunks)


def vote(peer: PeerId, prepared: PreparedValue) -> Prepared:
    """The signed vote of `peer`."""
    made = Prepared(ROUND, 0, prepared.ballot, proposal_digest(prepared.proposal), peer, b"")
    return signed(made, FakeSigner(peer))


def certificate(prepared: PreparedValue | None = None, voters: Sequence[PeerId] = PEERS) -> Certificate:
    """The certificate that `voters` voted for a value."""
    prepared = prepared or value()
    votes = tuple(Vote(peer, vote(peer, prepared).signature) for peer in voters)
    return Certificate(prepared.ballot, prepared.proposal, votes, ())


def leave(peer: PeerId, promised: Ballot, prepared: PreparedValue | None = None) -> Leave:
    """A signed LEAVE."""
    return signed(Leave(ROUND, 0, peer, promised, prepared, b""), FakeSigner(peer))


def history_after(prepared: PreparedValue) -> Digest:
    """The history digest once the value is decided."""
    return next_history(prepared.proposal)


def sent(effects: Sequence[Effect], kind: type[Message]) -> list[Send]:
    """The messages of this kind that are sent."""
    return [effect for effect in effects if isinstance(effect, Send) and isinstance(effect.message, kind)]


def told(effects: Sequence[Effect], kind: type) -> list[Any]:
    """The events of this kind."""
    return [effect.event for effect in effects if isinstance(effect, Tell) and isinstance(effect.event, kind)]


def snapshot(machine: object, seen: tuple[int, ...] = ()) -> object:
    """All that a machine holds, in a form that can be compared."""
    if id(machine) in seen:
        return "..."
    seen = (*seen, id(machine))
    if isinstance(machine, dict):
        return {repr(key): snapshot(item, seen) for key, item in machine.items()}
    if isinstance(machine, list | tuple | set | frozenset):
        return [snapshot(item, seen) for item in machine]
    held = dict(getattr(machine, "__dict__", {}))
    for name in getattr(type(machine), "__slots__", ()):
        held[name] = getattr(machine, name, None)
    if not held or callable(machine):
        return repr(machine) if isinstance(machine, str | bytes | int | float | bool | type(None)) else type(machine)
    return {name: snapshot(item, seen) for name, item in held.items()}


class refused:
    """Asserts a RemoteError that names `culprit` and leaves `machine` as it was."""

    def __init__(self, machine: object, culprit: PeerId | None, reason: str) -> None:
        self._machine = machine
        self._culprit = culprit
        self._raises = pytest.raises(RemoteError, match=reason)

    def __enter__(self) -> None:
        self._before = snapshot(self._machine)
        self._caught = self._raises.__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        swallowed = self._raises.__exit__(*error)
        assert self._caught.value.peer == self._culprit
        assert snapshot(self._machine) == self._before
        return swallowed
