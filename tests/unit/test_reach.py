"""What our offer says of the members that need a relay to send to us."""

from __future__ import annotations

import dataclasses

import pytest

from shoal.node.peers.reach import standing_among, worth_remembering
from shoal.protocol.averaging.apart import MAX_APART, Standing
from shoal.protocol.base.ids import NO_DIGEST
from shoal.protocol.messages.membership import RunStatus
from shoal.protocol.net.measure.link import Link
from tests.unit.rounds_kit import A, B, C, D

SOMEWHERE = RunStatus(1, NO_DIGEST, NO_DIGEST, "training", 0, 0, None, True, 0, 0, "unknown")
PUBLIC, NAT = (dataclasses.replace(SOMEWHERE, reachability=word) for word in ("public", "nat"))


def _link(peer: str, path: str) -> Link:
    return Link(peer, path, None, 0, 0, ())  # type: ignore[arg-type]


@pytest.mark.parametrize("reachability", ["public", "nat", "unknown"])
@pytest.mark.parametrize("path", ["direct", "punched", "relayed"])
def test_what_counts_of_those_that_are_connected_is_the_path(reachability: str, path: str) -> None:
    said = standing_among({A: NAT, B: PUBLIC}, [_link(A, path), _link(B, "direct")], reachability)
    assert said == Standing(True, (A,) if path == "relayed" else ())


def test_who_is_not_connected_is_apart_if_neither_can_be_dialled() -> None:
    others = {A: PUBLIC, B: NAT, C: None, D: SOMEWHERE}
    assert standing_among(others, [], "nat").apart == (B, C, D)
    assert standing_among(others, [], "public").apart == ()
    assert standing_among(others, [], "unknown").apart == ()


def test_those_come_first_who_can_be_dialled() -> None:
    links = [_link(each, "relayed") for each in (A, B, C)]
    assert standing_among({A: NAT, B: PUBLIC, C: NAT}, links, "nat").apart == (B, A, C)


def test_strangers_to_the_run_do_not_count() -> None:
    assert standing_among({A: NAT}, [_link(A, "direct"), _link(B, "relayed")], "nat") == Standing(True, ())


def test_who_needs_relays_with_too_many_cannot_be_reached() -> None:
    others = {f"p{number:03d}": NAT for number in range(MAX_APART + 1)}
    said = standing_among(others, [], "nat")  # type: ignore[arg-type]
    assert (said.reachable, len(said.apart)) == (False, MAX_APART)


HERE, NEAR, FAR = "/ip4/127.0.0.1/tcp/4180", "/ip4/192.168.1.7/tcp/4101", "/ip4/203.0.113.7/tcp/4101"


@pytest.mark.parametrize(
    ("linked", "kept"),
    [((), (HERE, NEAR, FAR)), ((HERE,), (HERE, NEAR, FAR)), ((HERE, NEAR), (NEAR, FAR)), ((FAR,), (NEAR, FAR))],
)
def test_no_member_has_us_dial_our_own_machine_from_another_one(linked: tuple[str, ...], kept: tuple[str, ...]) -> None:
    links = [Link(A, "direct", None, 0, 0, (each,)) for each in linked]
    named = [f"{each}/p2p/{B}" for each in (HERE, NEAR, FAR)] + ["/dns4/router.lan/tcp/80"]
    assert worth_remembering(named, links) == tuple(f"{each}/p2p/{B}" for each in kept)
