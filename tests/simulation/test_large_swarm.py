"""What the log costs a swarm of 200 members of whom 32 vote; docs/log.md has the figures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import pytest

from shoal.protocol.base.effects import Effect, Send
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import Message, encode
from shoal.protocol.log.register import MAX_ADMITTED, MAX_VOTERS, body_of
from shoal.protocol.messages.log import (
    AddVoters,
    Admit,
    KeeperMessage,
    Request,
    Result,
    Roster,
)
from tests.simulation import signing
from tests.simulation.links import LAN
from tests.simulation.oracle import Oracle
from tests.simulation.swarm import Peer, Shape
from tests.simulation.world import World

MOST_OF_THE_PROPOSER = 1_000_000  # bytes, from one decision to the next
MOST_OF_A_REQUEST = 300  # bytes
SIGNATURE = 64  # bytes of a real one
SOON = 120.0  # virtual seconds


class Bill:
    """The bytes of the log, of each member from one decision to the next."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self.sent: dict[int, dict[PeerId, int]] = defaultdict(lambda: defaultdict(int))  # by the last number decided
        self.requests: list[int] = []
        self._last: tuple[Message | None, int] = (None, 0)

    def saw(self, peer: PeerId, effect: Effect) -> None:
        """An effect of `peer` goes out."""
        if not isinstance(effect, Send) or not isinstance(effect.message, KeeperMessage):
            return
        if self._last[0] is not effect.message:
            self._last = (effect.message, len(encode(effect.message)))
        size = self._last[1]
        self.sent[len(self._oracle.entries)][peer] += size
        if isinstance(effect.message, Request):
            self.requests.append(size)


def names(count: int) -> list[PeerId]:
    """As long as real ones."""
    return [PeerId(f"12D3KooW{index:044d}") for index in range(count)]


def entries(oracle: Oracle, kind: type[Message]) -> Iterator[tuple[int, Message, int]]:
    """Number, body and bytes of all entries of one kind."""
    for number, entry in sorted(oracle.entries.items()):
        body = body_of(entry.body)
        if isinstance(body, kind):
            yield number, body, len(entry.body)


@pytest.mark.parametrize("members", [24, pytest.param(200, marks=pytest.mark.slow)])
def test_what_the_log_costs_a_large_swarm(
    members: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(signing, "SIZE", SIGNATURE)
    peers, oracle, shape = names(members), Oracle(), Shape(start_members=members)
    world = World(lambda me, now, disk, rng: Peer(me, peers, disk, rng, oracle, shape), 1, LAN)
    bill = Bill(oracle)
    world.taps += [oracle.saw, bill.saw]
    for peer in peers:
        world.start(peer)
    voters = min(members, MAX_VOTERS)
    world.run_until(lambda: len(next(iter(world.nodes())).member.log.register.voters) == voters, within=SOON)
    goal = oracle.newest + 2
    world.run_until(lambda: all(node.round >= goal for node in world.nodes()), within=SOON)
    assert not world.errors
    most = {number: max(sent.values()) for number, sent in bill.sent.items()}
    results = [number for number, *_ in entries(oracle, Result)]
    admitted = [len(body.asks) for _, body, _ in entries(oracle, Admit) if isinstance(body, Admit)]
    sizes = {kind.__name__: max(size for *_, size in entries(oracle, kind)) for kind in (Roster, Result, AddVoters)}
    of_all = max(most[number - 1] for number in results[-2:])  # all vote that may
    of_one = most[results[0] - 1]
    with capsys.disabled():
        print(f"\n{members} members, {voters} voters: from one result to the next its proposer sends {of_all} bytes of")
        print(f"the log at most, and {of_one} while the founder votes alone. A request has {max(bill.requests)} bytes.")
        print(
            f"The longest entries have {sizes} bytes; {len(admitted)} entries admit up to {max(admitted)} members each."
        )
    assert of_all <= MOST_OF_THE_PROPOSER
    assert max(bill.requests) <= MOST_OF_A_REQUEST
    assert max(admitted) <= MAX_ADMITTED
