"""Peers, a base, a roster and offers for tests of rounds, and what they ask of a core's effects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack
import pytest

from shoal.protocol.averaging.exchange import Exchange, Self
from shoal.protocol.averaging.policy import Base, Policy
from shoal.protocol.averaging.shelf import Shelf
from shoal.protocol.base.effects import Effect, Send, Tell
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import PeerId, digest
from shoal.protocol.base.signing import signed
from shoal.protocol.base.wire import Message
from shoal.protocol.messages.averaging import Made, MeanIs, Offer
from shoal.protocol.messages.log import Seat
from tests.simulation.facts import FactReducer
from tests.simulation.signing import FakeSigner

A, B, C, D = (PeerId(name) for name in ("a", "b", "c", "d"))
PEERS = (A, B, C)
STRANGER = PeerId("x")
CHUNKS = 3
BRANCH = digest("test run")
POLICY = Policy(min_members=2, start_members=2, max_group=64, max_weight=1000, chunks=(CHUNKS,))
BASE = Base(4, 17, digest("test history"), digest("test root"))
ROUND = BASE.round + 1
SIGNER = FakeSigner(A)
LIVES = {A: 1, B: 2, C: 3, D: 4}


def seats(*peers: PeerId) -> tuple[Seat, ...]:
    """A roster in which all own alike."""
    return tuple(Seat(peer, 1) for peer in peers or PEERS)


def offer(peer: PeerId, weight: int = 10, reachable: bool = True, apart: tuple[PeerId, ...] = ()) -> Offer:
    """A signed offer."""
    sound = Offer(BRANCH, 0, ROUND, 17, BASE.root, weight, 0, 0, reachable, apart, peer, LIVES[peer], b"")
    return signed(sound, FakeSigner(peer))


def made(chunk: int, owner: PeerId, hash: bytes, mask: bytes = b"\x07", epoch: int = 0) -> Made:
    """What `owner` says of a mean."""
    said = MeanIs(BRANCH, 0, ROUND, chunk, epoch, BASE.root, hash, owner, LIVES[owner], b"")  # type: ignore[arg-type]
    return Made(hash, mask, epoch, owner, LIVES[owner], signed(said, FakeSigner(owner)).signature)  # type: ignore[arg-type]


def fact(peer: PeerId, chunk: int) -> bytes:
    """A contribution to a chunk, as FactReducer adds them."""
    packed: bytes = msgpack.packb([peer, ROUND, BASE.root, chunk, 1.0])
    return packed


def contributed() -> Exchange:
    """The exchange of A, which has contributed itself to a round of A, B and C."""
    shelf, reducer = Shelf(), FactReducer()
    shelf.open(reducer)
    us = Self(A, lambda: (BRANCH,), 0, FakeSigner(A), lambda: LIVES[A])
    exchange = Exchange(us, ROUND, BASE.root, CHUNKS, reducer, shelf, tuple)
    exchange.seat(seats())
    exchange.contribute(10, lambda chunk: fact(A, chunk))
    return exchange


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
