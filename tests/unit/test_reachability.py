"""Whether others can dial us: which peers we ask, which we believe, and what we dial for others."""

from __future__ import annotations

import pytest

from shoal.dht.reachability import (
    ASK_AGAIN,
    INTERNET_V4,
    OPINIONS,
    PER_ASKER_RATE,
    RETRY,
    TOTAL_RATE,
    DialBackLimits,
    Reachability,
    Realm,
    realm_between,
    to_dial,
)
from shoal.dht.scope import Scope
from shoal.protocol.base.ids import PeerId

OWN, LAN = "/ip4/203.0.113.9/tcp/4101", "/ip4/192.168.1.7/tcp/4101"
ALSO = "/ip4/192.0.2.9/tcp/4101"
OUTER = "/ip4/198.51.100.2/tcp/4101"  # of a router that forwards our port: we do not know of it
PEERS = [PeerId(f"peer {number}") for number in range(10)]
HOME, WEB6 = Realm(Scope.LAN, 4), Realm(Scope.INTERNET, 6)
OWN6 = "/ip6/2001:db8::9/tcp/4101"


def listening() -> Reachability:
    found = Reachability()
    found.set_addresses([f"{OWN}/p2p/me", f"{LAN}/p2p/me"])
    return found


def test_some_of_each_scope_are_asked_and_nobody_twice() -> None:
    us = listening()
    linked = [(peer, INTERNET_V4 if number % 2 else HOME) for number, peer in enumerate(PEERS)]
    first = us.whom_to_ask(0.0, linked)
    assert [peer for peer in first if linked[PEERS.index(peer)][1] is INTERNET_V4] == PEERS[1:7:2]
    assert len(first) == 2 * OPINIONS
    for peer in first:
        us.answered(0.0, peer, dict(linked)[peer], [])
    assert us.whom_to_ask(1.0, linked) == []
    assert len(us.whom_to_ask(ASK_AGAIN + 1.0, linked)) == 2 * OPINIONS


def test_who_does_not_say_is_asked_again_later_and_others_at_once() -> None:
    us = listening()
    linked = [(peer, INTERNET_V4) for peer in PEERS]
    for peer in us.whom_to_ask(0.0, linked):
        us.failed(0.0, peer, INTERNET_V4)
    assert us.whom_to_ask(1.0, linked) == PEERS[3:6]
    assert us.whom_to_ask(RETRY + 1.0, linked[:1]) == PEERS[:1]
    assert us.verdict().reachability == "unknown"


@pytest.mark.parametrize(
    ("said", "reachability", "addresses"),
    [
        ([], "unknown", ()),
        ([[OWN]], "public", (OWN,)),
        ([[]], "nat", ()),
        ([[OWN], []], "nat", ()),  # one of two is no majority
        ([[OWN], [OWN], []], "public", (OWN,)),  # a liar cannot hide us
        ([[], [], [OWN]], "nat", ()),  # nor can one invent us
        ([[OUTER]], "nat", ()),
        ([[OUTER], [OUTER]], "public", (OUTER,)),  # two have found us where we did not know that we are
        ([["/ip4/198.51.100.2/tcp/22"]] * 3, "nat", ()),  # no port of ours
        ([["nonsense"]] * 3, "nat", ()),
        ([[OWN], [ALSO]], "public", (OWN, ALSO)),  # half of the others know the one address, half the other
        ([[OWN], [ALSO], [ALSO]], "public", (OWN, ALSO)),
        ([[OWN], [ALSO], [], []], "nat", ()),
        ([[OWN], [LAN]], "nat", ()),  # in the realm it found us nowhere
    ],
)
def test_most_of_those_asked_are_believed(said: list[list[str]], reachability: str, addresses: tuple[str, ...]) -> None:
    us = Reachability()
    us.set_addresses([OWN, LAN, ALSO])
    for peer, reached in zip(PEERS, said, strict=False):
        us.answered(0.0, peer, INTERNET_V4, reached)
    verdict = us.verdict()
    assert (verdict.reachability, verdict.addresses, verdict.serves) == (reachability, addresses, bool(addresses))


def test_who_has_dialled_us_by_itself_has_found_us() -> None:
    us = listening()
    [peer] = us.whom_to_ask(0.0, [(PEERS[0], INTERNET_V4)])
    us.dialled_us(peer, (OWN,))
    assert us.verdict().reachability == "unknown", "it may still say more"
    us.answered(0.0, peer, INTERNET_V4, [])  # it was too busy to dial us once more
    assert us.verdict().reachability == "nat"
    us.dialled_us(peer, (OWN,))
    assert (us.verdict().reachability, us.verdict().addresses) == ("public", (OWN,))


def test_a_node_that_only_its_lan_can_dial_serves_there_and_is_not_public() -> None:
    us = listening()
    us.answered(0.0, PEERS[0], HOME, [LAN])
    assert (us.verdict().reachability, us.verdict().addresses) == ("unknown", (LAN,))
    us.answered(0.0, PEERS[1], INTERNET_V4, [])
    assert (us.verdict().reachability, us.verdict().addresses) == ("nat", (LAN,))


def test_the_widest_address_comes_first() -> None:
    us = listening()
    us.answered(0.0, PEERS[0], HOME, [LAN])
    us.answered(0.0, PEERS[1], INTERNET_V4, [OWN])
    assert us.verdict().addresses == (OWN, LAN)


def test_who_wants_to_know_it_afresh_has_them_asked_again() -> None:
    us = listening()
    linked = [(peer, INTERNET_V4) for peer in PEERS[:3]]
    for peer in us.whom_to_ask(0.0, linked):
        us.answered(0.0, peer, INTERNET_V4, [])
    assert us.whom_to_ask(1.0, linked) == []
    us.renew()
    assert us.verdict().reachability == "nat", "until somebody has said otherwise"
    assert us.whom_to_ask(2.0, linked) == PEERS[:3]
    assert not us.is_settled
    for peer in PEERS[:3]:  # a port was opened meanwhile
        us.answered(3.0, peer, INTERNET_V4, [OWN])
    assert us.is_settled
    assert us.verdict().reachability == "public"
    assert us.whom_to_ask(4.0, linked) == []


def test_the_word_of_those_who_are_gone_counts_until_others_have_said() -> None:
    us = listening()
    for peer in us.whom_to_ask(0.0, [(peer, INTERNET_V4) for peer in PEERS[:3]]):
        us.answered(0.0, peer, INTERNET_V4, [])
    us.renew()
    assert us.whom_to_ask(1.0, [(PEERS[5], INTERNET_V4)]) == [PEERS[5]]
    assert us.verdict().reachability == "nat"
    us.answered(2.0, PEERS[5], INTERNET_V4, [OWN])
    assert us.verdict().reachability == "public"


def test_who_does_not_want_to_be_asked_again_has_said_what_it_said() -> None:
    us = listening()
    [peer] = us.whom_to_ask(0.0, [(PEERS[0], INTERNET_V4)])
    us.answered(0.0, peer, INTERNET_V4, [OWN])
    us.renew()
    assert us.whom_to_ask(1.0, [(peer, INTERNET_V4)]) == [peer]
    us.failed(1.0, peer, INTERNET_V4)
    assert us.verdict().reachability == "public"
    assert us.whom_to_ask(ASK_AGAIN + 1.0, [(peer, INTERNET_V4)]) == [peer]


def test_in_place_of_one_that_does_not_want_to_be_asked_again_others_are_asked() -> None:
    """A port was open, and is not any more."""
    us = listening()
    linked = [(peer, INTERNET_V4) for peer in PEERS]
    for peer in us.whom_to_ask(0.0, linked):
        us.answered(0.0, peer, INTERNET_V4, [OWN])
    us.renew()
    for peer in us.whom_to_ask(1.0, linked):
        us.failed(1.0, peer, INTERNET_V4)
    assert us.verdict().reachability == "public", "nobody has said otherwise"
    others = us.whom_to_ask(2.0, linked)
    assert others == PEERS[3:6]
    us.answered(3.0, others[0], INTERNET_V4, [])
    assert us.verdict().reachability == "nat", "old words do not outvote a new one"
    assert us.whom_to_ask(RETRY + 2.0, linked) == [PEERS[0], PEERS[1]], "and then there are three again"


def test_the_old_word_of_who_fails_last_does_not_count_either() -> None:
    us = listening()
    linked = [(peer, INTERNET_V4) for peer in PEERS[:3]]
    for peer in us.whom_to_ask(0.0, linked):
        us.answered(0.0, peer, INTERNET_V4, [OWN])
    us.renew()
    assert us.whom_to_ask(1.0, linked) == PEERS[:3]
    us.answered(2.0, PEERS[0], INTERNET_V4, [])
    assert us.verdict().reachability == "public", "two may still say something else"
    for peer in PEERS[1:3]:
        us.failed(3.0, peer, INTERNET_V4)
    assert us.verdict().reachability == "nat"


def test_who_is_asked_and_does_not_answer_is_not_waited_for() -> None:
    us = listening()
    [peer] = us.whom_to_ask(0.0, [(PEERS[0], INTERNET_V4)])
    us.failed(5.0, peer, INTERNET_V4)
    assert us.is_settled


def test_one_version_of_ip_says_nothing_of_the_other() -> None:
    us = Reachability()
    us.set_addresses([OWN, OWN6])
    linked = [(peer, WEB6 if number > 4 else INTERNET_V4) for number, peer in enumerate(PEERS)]
    chosen = us.whom_to_ask(0.0, linked)
    assert [dict(linked)[peer] for peer in chosen] == [INTERNET_V4] * OPINIONS + [WEB6] * OPINIONS
    us.answered(0.0, chosen[-1], WEB6, [OWN6])
    assert (us.verdict().reachability, us.verdict().addresses) == ("public", (OWN6,))  # nobody is there by IPv4
    for peer in chosen[:OPINIONS]:
        us.answered(0.0, peer, INTERNET_V4, [])
    assert (us.verdict().reachability, us.verdict().addresses) == ("nat", (OWN6,))  # whom most others cannot dial
    for peer in chosen[:OPINIONS]:
        us.answered(0.0, peer, INTERNET_V4, [OWN])
    assert (us.verdict().reachability, set(us.verdict().addresses)) == ("public", {OWN, OWN6})
    for peer in chosen[OPINIONS:]:
        us.answered(0.0, peer, WEB6, [])
    assert (us.verdict().reachability, us.verdict().addresses) == ("public", (OWN,))  # a firewall of IPv6


def test_connections_have_the_realm_of_the_narrowest() -> None:
    assert realm_between([OWN, OWN6]) == INTERNET_V4
    assert realm_between([OWN6]) == WEB6
    assert realm_between([OWN6, LAN]) == HOME
    assert realm_between([]) == INTERNET_V4


def test_with_other_addresses_nothing_said_before_counts() -> None:
    us = listening()
    us.answered(0.0, PEERS[0], INTERNET_V4, [OWN])
    us.set_addresses([f"{OWN}/p2p/me", f"{LAN}/p2p/me"])
    assert us.verdict().serves
    us.set_addresses([f"{LAN}/p2p/me"])
    assert not us.verdict().serves
    assert us.whom_to_ask(1.0, [(PEERS[0], INTERNET_V4)]) == [PEERS[0]]


def test_only_the_hosts_that_the_asker_is_connected_from_are_dialled() -> None:
    others = ["/ip4/203.0.113.77/tcp/80", "/ip4/127.0.0.1/tcp/22", "/ip4/192.168.1.1/tcp/443", "/dns4/x/tcp/5"]
    assert to_dial(others, ["/ip4/198.51.100.2/tcp/51234"]) == [
        "/ip4/198.51.100.2/tcp/80",
        "/ip4/198.51.100.2/tcp/22",
    ]
    assert to_dial(others, []) == []
    assert to_dial([], ["/ip4/198.51.100.2/tcp/51234"]) == []


def test_few_are_dialled_for_one_question() -> None:
    named = [f"/ip4/203.0.113.1/tcp/{port}" for port in range(1, 1000)]
    hosts = [f"/ip4/198.51.100.{number}/tcp/9" for number in range(1, 200)]
    assert len(to_dial(named, hosts)) == 4


def test_questions_are_answered_at_a_bounded_rate() -> None:
    tries = DialBackLimits()
    assert sum(tries.allows(0.0, PEERS[0]) for _ in range(100)) == PER_ASKER_RATE[0]
    assert sum(tries.allows(0.0, PeerId(f"{number}")) for number in range(100)) == TOTAL_RATE[0] - PER_ASKER_RATE[0]
    assert tries.allows(31.0, PEERS[0])
