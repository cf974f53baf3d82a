"""Which connections are closed: of many, those that are idle and that no run uses."""

from __future__ import annotations

from shoal.node.peers.discovery import IDLE, LONG_IDLE, MAX_KNOWN, MAX_SPARE, MAX_SPARE_OF_CLIENT, LastUse
from shoal.protocol.base.ids import PeerId

PEERS = [PeerId(f"{number:04}") for number in range(MAX_SPARE + 10)]


def used(peers: list[PeerId]) -> LastUse:
    last = LastUse()
    for second, peer in enumerate(peers):
        last.note(float(second), peer)
    return last


def test_those_used_last_are_kept_and_so_are_all_while_they_are_few() -> None:
    last = used(PEERS)
    assert last.to_close(1000.0, PEERS[:MAX_SPARE], ()) == []
    assert sorted(last.to_close(1000.0, PEERS, ())) == PEERS[:10]


def test_members_of_our_runs_are_never_closed() -> None:
    members = PEERS[:5]
    assert sorted(used(PEERS).to_close(1000.0, PEERS, members)) == PEERS[5:10]


def test_who_does_not_serve_keeps_few_that_were_not_used_for_long() -> None:
    last, some = used(PEERS[:20]), PEERS[:20]
    assert last.to_close(LONG_IDLE - 1.0, some, (), serves=False) == []
    assert last.to_close(LONG_IDLE + 3.0, some, (), serves=False) == [PEERS[3], PEERS[2], PEERS[1], PEERS[0]]
    assert sorted(last.to_close(2 * LONG_IDLE, some, (), serves=False)) == PEERS[: 20 - MAX_SPARE_OF_CLIENT]
    assert last.to_close(2 * LONG_IDLE, some, (), serves=True) == []
    assert len(used(PEERS).to_close(IDLE + len(PEERS), PEERS, (), serves=False)) == 10


def test_what_was_just_used_is_kept_however_many_there_are() -> None:
    last = used(PEERS)
    assert last.to_close(IDLE - 1.0, PEERS, ()) == []
    assert last.to_close(IDLE + 3.0, PEERS, ()) == [PEERS[3], PEERS[2], PEERS[1], PEERS[0]]


def test_who_never_called_counts_from_when_it_was_seen_first() -> None:
    last = LastUse()
    assert last.to_close(0.0, PEERS, ()) == []
    assert len(last.to_close(IDLE, PEERS, ())) == 10


def test_the_memory_is_bounded() -> None:
    last = used([PeerId(f"{number}") for number in range(2 * MAX_KNOWN)])
    assert len(last._at) == MAX_KNOWN
