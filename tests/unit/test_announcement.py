"""Announcements on the local network: what is sent, and which of those received are believed."""

from __future__ import annotations

from ipaddress import ip_interface

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.node.peers.nearby import MAX_ADDRESSES, parse_announcement, text_record
from shoal.protocol.net.system.identity import Identity

ANNA = Identity.generate().peer
ATTACHED = [ip_interface("10.0.0.7/24"), ip_interface("fd00::7/64")]
NEAR = ("/ip4/10.0.0.9/tcp/4101", "/ip6/fd00::9/tcp/4101")


def heard(said: dict[str, str]) -> dict[bytes, bytes | None]:
    return {key.encode(): value.encode() for key, value in said.items()}


def test_what_one_says_the_other_believes() -> None:
    said = text_record(ANNA, [f"{each}/p2p/{ANNA}" for each in NEAR])
    assert parse_announcement(heard(said), ATTACHED) == (ANNA, NEAR)


def test_nobody_makes_us_knock_elsewhere() -> None:
    said = text_record(ANNA, ["/ip4/203.0.113.5/tcp/22", "/ip4/127.0.0.1/tcp/4101", NEAR[0], "/dns4/example.org/tcp/1"])
    assert parse_announcement(heard(said), ATTACHED) == (ANNA, NEAR[:1])
    assert parse_announcement(heard(text_record(ANNA, ["/ip4/203.0.113.5/tcp/22"])), ATTACHED) is None
    assert parse_announcement(heard(text_record(ANNA, NEAR)), []) is None


def test_only_so_many_addresses_are_said_and_believed() -> None:
    many = [f"/ip4/10.0.0.{i}/tcp/1" for i in range(1, 99)]
    assert parse_announcement(heard(text_record(ANNA, many)), ATTACHED) == (ANNA, tuple(many[:MAX_ADDRESSES]))
    all_said = heard(text_record(ANNA, [])) | {b"a%d" % i: each.encode() for i, each in enumerate(many)}
    assert parse_announcement(all_said, ATTACHED) == (ANNA, tuple(many[:MAX_ADDRESSES]))


@pytest.mark.parametrize(
    "change", [{"v": "2"}, {"peer": "nobody"}, {"peer": ""}, {"a0": ""}, {"a0": "/ip4/10.0.0.9/tcp/0"}]
)
def test_other_words_are_not_believed(change: dict[str, str]) -> None:
    assert parse_announcement(heard(text_record(ANNA, NEAR[:1]) | change), ATTACHED) is None


@pytest.mark.parametrize(
    "address",
    [
        "10.0.0.9:4101",
        "/ip4/10.0.0.9/udp/4101",
        "/ip4/10.0.0.9/tcp/65536",
        "/ip4/10.0.0.9/tcp/４１０１",
        "/ip4/10.0.0.9/tcp/-1",
        "/ip6/10.0.0.9/tcp/4101",
        "/ip4/10.0.0.9/tcp/4101/p2p/x",
        "/ip6/fd00::9%eth0/tcp/4101",
        "x/ip4/10.0.0.9/tcp/4101",
        f"/ip4/10.0.0.9/tcp/{'1' * 5000}",
    ],
)
def test_only_plain_tcp_ports_are_believed(address: str) -> None:
    assert parse_announcement(heard(text_record(ANNA, NEAR[:1]) | {"a0": address}), ATTACHED) is None


values = st.none() | st.binary(max_size=255) | st.sampled_from([ANNA.encode(), b"1", *(each.encode() for each in NEAR)])
records = st.dictionaries(st.sampled_from([b"v", b"peer", *(b"a%d" % i for i in range(9))]) | st.binary(), values)


@given(records)
def test_any_record_is_believed_in_parts_or_not_at_all(said: dict[bytes, bytes | None]) -> None:
    found = parse_announcement(said, ATTACHED)
    assert found is None or (found[0] == ANNA and set(found[1]) <= set(NEAR))
