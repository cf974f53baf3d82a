"""Strategies for what a hostile peer may say: addresses, contacts and records, wrong in every way or right."""

from __future__ import annotations

import dataclasses
import random

from hypothesis import strategies as st

from shoal.dht.keys import node_id, place
from shoal.dht.record import MAX_LIFE, MAX_SKEW, slot_of
from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.dht import Contact, Record
from tests.simulation.dht_world import make_address, make_peer
from tests.unit.dht.record_kit import ALICE, BOB, CAROL, HOUR, KEY, NOW, key_of, signed_record

RNG = random.Random("hostile kit")
PEERS = [make_peer(RNG) for _ in range(400)]
TARGET = int.from_bytes(place(KEY, 0), "big")
NEAREST = sorted(PEERS, key=lambda peer: node_id(peer) ^ TARGET)  # to the first place of KEY

# -- addresses ----------------------------------------------------------------------------------------------

HOSTS = [
    *("/ip4/8.8.8.8", "/ip4/203.0.113.9", "/ip6/2606:4700::1111", "/ip4/192.168.1.7", "/ip4/100.64.0.1"),
    *("/ip4/127.0.0.1", "/ip6/::1", "/ip6/::ffff:127.0.0.1", "/ip6/::ffff:192.168.1.7", "/ip4/169.254.169.254"),
    *("/ip4/0.0.0.0", "/ip6/::", "/ip4/255.255.255.255", "/ip4/224.0.0.1", "/ip6/ff02::1", "/ip6/fe80::1"),
    *("/ip6/fe80::1%eth0", "/ip6/fd00::1", "/ip6/fec0::1", "/ip6/64:ff9b::7f00:1", "/ip4/::1", "/ip6/8.8.8.8"),
    *("/ip4/8.8.8", "/ip4/\u0668.8.8.8", "/dns4/localhost", "/dns/example.org", "/dnsaddr/x", "/unix/tmp", "/", ""),
]
PORTS = [
    *("/tcp/4101", "/tcp/22", "/tcp/65535", "/tcp/0", "/tcp/65536", "/tcp/-1", "/tcp/+1", "/tcp/1e3", "/tcp/ 1"),
    *("/tcp/\u0663", "/tcp/" + "9" * 100, "/tcp/", "/udp/4101/quic-v1", "/tcp", ""),
]
TAILS = [
    *("", f"/p2p/{PEERS[0]}", "/", "/p2p/", f"/p2p/{PEERS[0]}/p2p-circuit", "/p2p-circuit", "/ws", "/\n"),
    *("/ip4/127.0.0.1/tcp/22", "/ip6/::1/tcp/22", f"/p2p/{PEERS[0]}/ip4/127.0.0.1/tcp/22", "/dns4/localhost/tcp/80"),
]
composed = st.builds(lambda *parts: "".join(parts), *map(st.sampled_from, (HOSTS, PORTS, TAILS)))
CROWDED = ("/ip4/9.9.9.9/tcp/4101",)  # where many peers say that they are
good_address = st.sampled_from([make_address(RNG) for _ in range(8)])
address = composed | st.text(max_size=12) | st.just("/" + "x" * 1000) | good_address
few_addresses = st.just(CROWDED) | st.lists(good_address, min_size=1, max_size=3).map(tuple)
addresses = few_addresses | st.just(CROWDED * 9) | st.lists(address, max_size=12).map(tuple)

# -- contacts -----------------------------------------------------------------------------------------------


SPEAKER = PeerId("the one that speaks")  # `spoken_by` puts its name there
GOOD = [Contact(peer, (make_address(RNG),)) for peer in (*PEERS, *NEAREST[:20] * 9, *[CAROL.peer] * 30)]
good_contact = st.sampled_from(GOOD)
odd_contact = st.builds(Contact, st.sampled_from([SPEAKER, CAROL.peer, *PEERS[:20]]) | st.text(max_size=70), addresses)
contacts = st.lists(good_contact, max_size=20).map(tuple) | st.lists(good_contact | odd_contact, max_size=23).map(tuple)


def spoken_by(speaker: PeerId, named: tuple[Contact, ...]) -> tuple[Contact, ...]:
    """`named`, with the speaker's own name in place of SPEAKER."""
    return tuple(Contact(speaker, each.addresses) if each.peer == SPEAKER else each for each in named)


# -- records ------------------------------------------------------------------------------------------------

GENUINE = [
    *(signed_record(), signed_record(sequence=2), signed_record(BOB), signed_record(subkey="x")),
    signed_record(BOB, expires=NOW + 1),
]
WRONG = [
    signed_record(key=key_of("another")),
    signed_record(BOB, expires=NOW - 1),
    signed_record(expires=NOW + MAX_LIFE + MAX_SKEW + 1),
    dataclasses.replace(GENUINE[1], value=b"forged"),
    dataclasses.replace(GENUINE[1], author=BOB.peer),
    dataclasses.replace(GENUINE[0], signature=b""),
    dataclasses.replace(GENUINE[0], value=bytes(5000)),
    dataclasses.replace(GENUINE[0], subkey="x" * 200),
    dataclasses.replace(GENUINE[0], author=PeerId("")),
    dataclasses.replace(GENUINE[0], author=PeerId("\u0663" * 500)),
    dataclasses.replace(GENUINE[0], sequence=2**63 - 1),
]
made_up = st.builds(
    Record,
    key=st.just(KEY),
    author=st.sampled_from([ALICE.peer, BOB.peer, *PEERS[:3]]),
    subkey=st.text(max_size=3),
    value=st.binary(max_size=5),
    sequence=st.integers(0, 2**63 - 1),
    expires=st.integers(NOW, NOW + HOUR) | st.integers(0, 2**63 - 1),
    signature=st.binary(max_size=65),
)
one_of_each = st.lists(st.sampled_from(GENUINE), max_size=3, unique_by=slot_of).map(tuple)
one = st.tuples(st.sampled_from(WRONG) | made_up)
records = one_of_each | one | st.lists(st.sampled_from(GENUINE + WRONG) | made_up, max_size=6).map(tuple)
