"""Run links: what is understood of pasted text, and which addresses are put into a link."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.dht.link import (
    MAX_ADDRESSES,
    MAX_LINK,
    RunLink,
    format_link,
    is_address,
    left_out,
    parse_link,
    ranked,
    scope,
)
from shoal.dht.scope import Scope
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import RunId
from shoal.protocol.net.system.identity import Identity

RUN = RunId(bytes(range(32)))
ID = RUN.hex()
ANNA, BERT = (Identity.generate().peer for _ in range(2))
HERE = "/ip4/192.0.2.7/tcp/4101"

ports = st.integers(1, 65_535)
hosts = st.one_of(
    st.ip_addresses(v=4).map(lambda ip: f"/ip4/{ip}"),
    st.ip_addresses(v=6).map(lambda ip: f"/ip6/{ip}"),
    st.from_regex(r"[a-z][a-z0-9-]{0,20}(\.[a-z]{2,6}){0,2}", fullmatch=True).map(lambda name: f"/dns4/{name}"),
)
names = st.sampled_from(["", f"/p2p/{ANNA}", f"/p2p/{BERT}"])
multiaddrs = st.builds(lambda host, port, name: f"{host}/tcp/{port}{name}", hosts, ports, names)


@given(run=st.binary(min_size=32, max_size=32), addresses=st.lists(multiaddrs, max_size=12))
def test_what_is_put_into_a_link_comes_out_of_it(run: bytes, addresses: list[str]) -> None:
    link = format_link(RunId(run), addresses)
    assert len(link) <= MAX_LINK
    parsed = parse_link(link)
    assert parsed.run == run
    plain = {address.partition("/p2p/")[0] for address in addresses}
    assert set(parsed.addresses) <= plain
    assert bool(parsed.addresses) is bool(addresses)
    assert len(set(parsed.addresses)) == len(parsed.addresses) <= MAX_ADDRESSES
    assert set(parse_link(format_link(parsed.run, parsed.addresses)).addresses) == set(parsed.addresses)


@given(st.text(max_size=400))
def test_any_text_is_a_link_or_one_sentence(text: str) -> None:
    for each in (text, f"shoal:{text}", f"shoal:{ID}?{text}", f"shoal:{ID}?p={text}"):
        with suppress(LocalError):
            assert all(map(is_address, parse_link(each).addresses))


@pytest.mark.parametrize(
    "pasted",
    [
        f"shoal:{ID}?p={HERE}",
        f"  \n<shoal:{ID}?p={HERE}>\n",
        f"'shoal:{ID}?p={HERE}'",
        f"“shoal:{ID}?p={HERE}”.",
        f"(SHOAL:{ID.upper()}?p={HERE}),",
        f"shoal:{ID}?p=%2Fip4%2F192.0.2.7%2ftcp%2F4101",
        f"shoal:{ID}?p={HERE}&p={HERE}",
        f"shoal:{ID}?mood=gay&p={HERE}&v=1&q#fragment",
    ],
)
def test_what_chats_make_of_a_link_is_one_still(pasted: str) -> None:
    assert parse_link(pasted) == RunLink(RUN, (HERE,))


@pytest.mark.parametrize("link", [f"shoal:{ID}", f"shoal:{ID}?", f"shoal:{ID}?x=1"])
def test_a_link_needs_no_address(link: str) -> None:
    assert parse_link(link) == RunLink(RUN)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is no link to a run"),
        ("https://example.org/?shoal:", "is no link to a run"),
        (ID, "is no link to a run"),
        ("shoal:", "not whole"),
        (f"shoal:{ID[:-1]}?p={HERE}", "not whole"),
        (f"shoal:{ID}0", "not whole"),
        (f"shoal:{'g' * 64}", "not whole"),
        (f"shoal:{ID}?v=2", "newer Shoal.*upgrade"),
        ("shoal:whatever?p=x&v=2.1&v=1", "newer Shoal.*upgrade"),
        (f"shoal:{ID}?p=", "'' for an address"),
        (f"shoal:{ID}?p=192.0.2.7:4101", "for an address"),
        (f"shoal:{ID}?p=/ip4/192.0.2.7", "for an address"),
        (f"shoal:{ID}?p=/ip4/192.0.2.700/tcp/4101", "for an address"),
        (f"shoal:{ID}?p=/ip6/192.0.2.7/tcp/4101", "for an address"),
        (f"shoal:{ID}?p=/ip4/192.0.2.7/tcp/65536", "for an address"),
        (f"shoal:{ID}?p=/ip4/192.0.2.7/tcp/0", "for an address"),
        (f"shoal:{ID}?p=/ip4/192.0.2.7/tcp/4101/", "for an address"),
        (f"shoal:{ID}?p=/dns4/a%0ab/tcp/4101", "for an address"),
        (f"shoal:{ID}?p={HERE}&p=/unix/x/tcp/1", "for an address"),
        (f"shoal:{ID}?x={'x' * MAX_LINK}", "at most 300 characters, and this one 373"),
    ],
)
def test_garbage_is_refused_in_one_sentence(text: str, complaint: str) -> None:
    with pytest.raises(LocalError, match=complaint) as refusal:
        parse_link(text)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("/ip4/8.8.8.8", Scope.INTERNET),
        ("/ip4/203.0.113.9", Scope.INTERNET),
        ("/ip6/2001:db8::1", Scope.INTERNET),
        ("/dns4/example.org", Scope.INTERNET),
        ("/ip4/192.168.1.7", Scope.LAN),
        ("/ip4/100.64.0.1", Scope.LAN),
        ("/ip6/fe80::1", Scope.LAN),
        ("/dns4/printer.local", Scope.LAN),
        ("/ip4/127.0.0.1", Scope.LOOPBACK),
        ("/ip4/0.0.0.0", Scope.LOOPBACK),
        ("/ip6/::1", Scope.LOOPBACK),
        ("/dns/localhost", Scope.LOOPBACK),
    ],
)
def test_from_where_an_address_can_be_dialled(host: str, expected: Scope) -> None:
    assert scope(f"{host}/tcp/4101") == expected


def at(host: str, peer: str) -> str:
    return f"/ip4/{host}/tcp/4101/p2p/{peer}"


def test_a_second_network_of_ours_is_a_turn_ahead_of_the_first_one_of_many_others() -> None:
    """A VPN that all are in comes first with everybody; the neighbour who is not in it finds a door all the same."""
    others = [at(f"10.8.0.{number}", Identity.generate().peer) for number in range(2, 20)]
    bridges = [at(f"172.{number}.0.1", ANNA) for number in range(17, 24)]
    mine = [at("10.8.0.1", ANNA), at("192.168.1.5", ANNA), *bridges, at("127.0.0.1", ANNA)]
    link = format_link(RUN, [*mine, *others])
    hosts = [each.split("/")[2] for each in parse_link(link).addresses]
    assert hosts == ["10.8.0.1", "192.168.1.5", "10.8.0.2", "10.8.0.3", "10.8.0.4"]
    assert left_out(link, mine) == [each.partition("/p2p/")[0] for each in bridges]
    both = [at("8.8.8.8", ANNA), f"/ip6/2a00::1/tcp/4101/p2p/{ANNA}", at("192.168.1.5", ANNA)]
    assert ranked([*both, at("8.8.4.4", BERT)])[:2] == ["/ip4/8.8.8.8/tcp/4101", "/ip6/2a00::1/tcp/4101"]


def test_each_peers_best_address_comes_before_anybodys_second() -> None:
    addresses = [at("127.0.0.1", ANNA), at("10.0.0.1", ANNA), at("8.8.8.8", ANNA), at("10.0.0.2", BERT)]
    assert ranked(addresses) == [f"/ip4/{host}/tcp/4101" for host in ("8.8.8.8", "10.0.0.2", "10.0.0.1")]


def test_the_loopback_is_for_swarms_that_are_nowhere_else() -> None:
    assert ranked([at("127.0.0.1", ANNA), at("127.0.0.1", BERT)]) == ["/ip4/127.0.0.1/tcp/4101"]
    assert ranked([at("127.0.0.1", ANNA), at("10.0.0.2", BERT)]) == ["/ip4/10.0.0.2/tcp/4101"]


def test_a_relay_keeps_its_name_and_what_is_no_address_stays_out() -> None:
    relayed = f"/ip4/8.8.8.8/tcp/4101/p2p/{ANNA}/p2p-circuit/p2p/{BERT}"
    assert ranked([relayed, "nonsense", "/ip4/8.8.8.8"]) == [relayed]
    assert parse_link(format_link(RUN, [relayed])).addresses == (relayed,)


def test_a_link_that_is_full_holds_the_best() -> None:
    long = [f"/dns4/{'x' * 60}{turn}.example.org/tcp/4101" for turn in range(9)]
    parsed = parse_link(format_link(RUN, ["/ip4/10.0.0.1/tcp/4101", *long]))
    assert parsed.addresses == (*long[:2], "/ip4/10.0.0.1/tcp/4101")
