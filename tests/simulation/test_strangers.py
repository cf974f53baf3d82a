"""Whatever a peer sends, in whatever phase: a member answers, ignores it, or raises RemoteError. Nothing else.

Messages are drawn from the table by type hint, with numbers, names and digests that are likely to fit, and with good
signatures, so that they come past the first checks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import typing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shoal.protocol.messages
from shoal.protocol.base.effects import Effect, Send
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import Digest, PeerId, RunId
from shoal.protocol.base.signing import signed
from shoal.protocol.base.wire import Message, Payload, decode, encode, table
from tests.simulation import replicas
from tests.simulation.campaign import build
from tests.simulation.links import LAN
from tests.simulation.signing import FakeSigner
from tests.simulation.swarm import peers_named
from tests.unit.test_wire_fuzz import compound

assert shoal.protocol.messages  # importing it fills the table
PEERS = peers_named(3)
KINDS = [kind for tag, kind in table().items() if tag < 100]


class Drawing:
    """Values by type hint, of which many fit the swarm that they are sent to."""

    def __init__(self, digests: list[bytes]) -> None:
        numbers = st.one_of(st.integers(0, 4), st.integers(0, 2**63 - 1))
        self._known: dict[Any, st.SearchStrategy[Any]] = {
            int: numbers,
            float: st.floats(allow_nan=False, allow_infinity=False),
            bool: st.booleans(),
            type(None): st.none(),
            str: st.text(max_size=8),
            bytes: st.binary(max_size=20),
            PeerId: st.sampled_from([*PEERS, PeerId("stranger")]),
            Digest: st.sampled_from([Digest(each) for each in digests]),
            RunId: st.sampled_from([RunId(each) for each in digests]),
        }

    def of(self, hint: Any) -> st.SearchStrategy[Any]:
        if hint not in self._known:
            self._known[hint] = self._compound(hint)
        return self._known[hint]

    def _compound(self, hint: Any) -> st.SearchStrategy[Any]:
        if hint == Payload:
            return self.of(bytes)
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        if origin is tuple and args[-1] is Ellipsis:
            return st.lists(self.of(args[0]), max_size=6).map(tuple)
        if origin is tuple:
            return st.tuples(*map(self.of, args))
        if args:
            return st.one_of(*map(self.of, args))
        if not (isinstance(hint, type) and dataclasses.is_dataclass(hint)):
            return compound(hint)
        hints = typing.get_type_hints(hint)
        return st.builds(hint, **{field.name: self.of(hints[field.name]) for field in dataclasses.fields(hint)})


def as_signed(message: Message, author: PeerId) -> Message:
    """The message with a valid signature of `author`, if it has a signature at all."""
    return signed(message, FakeSigner(author)) if hasattr(message, "signature") else message


FEW = settings(max_examples=settings().max_examples // 6)  # each is a swarm, and 30 messages at least
REPLICA_KINDS = [kind for tag, kind in table().items() if tag in (25, 27, 42, 44, 45, 46, 47, 54, 55, 56, 57)]


@pytest.mark.parametrize("seconds", [0.1, 1.5, 1.9, 2.1, 4.4, 9.0])
@given(data=st.data())
@FEW
def test_a_member_with_a_replica_survives_any_message(seconds: float, data: st.DataObject) -> None:
    """Most are of kinds that it takes, so that they come far; and its timers fire on what they have left behind."""
    world, _ = replicas.build(1, len(PEERS), LAN)
    world.run(seconds)
    victim = world.node(PEERS[0])
    drawing = Drawing([bytes(32), victim.member.status.root, replicas.HISTORY])
    kinds = st.sampled_from([*KINDS, *(REPLICA_KINDS * 6)])
    for kind in data.draw(st.lists(kinds, min_size=30, max_size=60)):
        sender = data.draw(st.sampled_from([*PEERS[1:], PeerId("stranger")]))
        message = as_signed(data.draw(drawing.of(kind)), sender)

        def hand_over(
            node: replicas.Replica, now: float, sender: PeerId = sender, sent: Message = message
        ) -> list[Effect]:
            with contextlib.suppress(RemoteError):  # anything else ends the test
                return [each for each in node.receive(now, sender, decode(encode(sent))) if not isinstance(each, Send)]
            return []

        world.command(victim.me, hand_over)
    world.run(5.0)


@pytest.mark.parametrize("seconds", [0.1, 1.5, 2.1, 2.3, 4.4, 9.0])
@given(data=st.data())
@FEW
def test_a_member_survives_any_message(seconds: float, data: st.DataObject) -> None:
    world, oracle = build(1, len(PEERS), LAN)
    world.run(seconds)
    victim = world.node(PEERS[0])
    base = victim.member.rounds.base
    digests = [bytes(32), oracle.roots[0], *([base.history, base.root] if base is not None else [])]
    drawing = Drawing(digests)
    for kind in data.draw(st.lists(st.sampled_from(KINDS), min_size=30, max_size=60)):
        sender = data.draw(st.sampled_from([*PEERS[1:], PeerId("stranger")]))
        message = as_signed(data.draw(drawing.of(kind)), sender)
        with contextlib.suppress(RemoteError):  # anything else ends the test
            victim.member.receive(world.now + 2000.0, sender, decode(encode(message)))
