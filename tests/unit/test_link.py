"""Run links: one word, what is understood of pasted text, and the sentence for whatever is wrong."""

from __future__ import annotations

import re
import shlex
from base64 import b32encode
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.dht.link import (
    ANCHOR,
    BRANCH,
    DIRECT,
    MAX_ADDRESSES,
    MAX_LINK,
    OTHER,
    RELAYED,
    RunLink,
    encode_link,
    format_link,
    left_out,
    looks_like_link,
    parse_link,
)
from shoal.dht.link_addresses import is_address
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import RunId, digest
from shoal.protocol.messages.anchor import Anchor
from shoal.protocol.net.system.identity import Identity

RUN = RunId(bytes(range(32)))
ANNA, BERT = (Identity.of_seed(bytes([seed]) * 32).peer for seed in (1, 2))
HERE, SIX = "/ip4/192.0.2.7/tcp/4101", "/ip6/2001:db8::7/tcp/4101"
LINK = format_link(RUN, [HERE])

ports = st.integers(1, 65_535)
hosts = st.one_of(
    st.ip_addresses(v=4).map(lambda ip: f"/ip4/{ip}"),
    st.ip_addresses(v=6).map(lambda ip: f"/ip6/{ip}"),
    st.from_regex(r"[a-z][a-z0-9-]{0,20}(\.[a-z]{2,6}){0,2}", fullmatch=True).map(lambda name: f"/dns4/{name}"),
)
names = st.sampled_from(["", f"/p2p/{ANNA}", f"/p2p/{BERT}"])
multiaddrs = st.builds(lambda host, port, name: f"{host}/tcp/{port}{name}", hosts, ports, names)


def sealed(body: bytes) -> str:
    """A link of these bytes, which need not mean anything, with the right length and check, as is documented."""
    alphabet = "abcdefghijklmnopqrstuvwxyz234567"
    letters = b32encode(body + digest("run link", body)[:4]).decode().rstrip("=").lower()
    return f"shoal2{alphabet[len(letters) // 32]}{alphabet[len(letters) % 32]}{letters}"


# -- the word -----------------------------------------------------------------------------------------------


@given(run=st.binary(min_size=32, max_size=32), addresses=st.lists(multiaddrs, max_size=12))
def test_what_is_put_into_a_link_comes_out_of_it(run: bytes, addresses: list[str]) -> None:
    link = format_link(RunId(run), addresses)
    assert re.fullmatch(r"shoal2[a-z2-7]+", link), "shells and chats leave it as it is"
    assert shlex.quote(link) == link
    assert len(link) <= MAX_LINK
    parsed = parse_link(link)
    assert parsed.run == run
    plain = {address.partition("/p2p/")[0] for address in addresses}
    assert set(parsed.addresses) <= plain
    assert bool(parsed.addresses) is bool(addresses)
    assert len(set(parsed.addresses)) == len(parsed.addresses) <= MAX_ADDRESSES
    assert set(parse_link(format_link(parsed.run, parsed.addresses)).addresses) == set(parsed.addresses)


def test_the_format_is_the_documented_one_and_short() -> None:
    place = bytes([192, 0, 2, 7]) + (4101).to_bytes(2, "big")
    assert sealed(RUN + bytes([1, 6]) + place) == LINK
    assert len(LINK) == 79
    relayed = f"{HERE}/p2p/{ANNA}/p2p-circuit/p2p/{BERT}"
    assert len(format_link(RUN, [relayed])) == 181
    assert len(format_link(RUN, [SIX])) == 98
    assert len(format_link(RUN, [])) == 66


@pytest.mark.parametrize(
    "address",
    [
        HERE,
        SIX,
        "/dns4/node.example.org/tcp/4101",
        "/ip4/192.0.2.7/udp/4101",
        "/ip6/2001:DB8::7/tcp/4101",
        f"{HERE}/p2p/{ANNA}/p2p-circuit/p2p/{BERT}",
        f"{SIX}/p2p/{ANNA}/p2p-circuit/p2p/{BERT}",
        f"/dns/relay.example.org/tcp/1/p2p/{ANNA}/p2p-circuit",
    ],
)
def test_an_address_stays_as_it_is(address: str) -> None:
    assert parse_link(format_link(RUN, [address])).addresses == (address,)


def test_a_link_that_is_full_holds_the_best_and_what_it_lacks_is_known() -> None:
    long = [f"/dns4/{'x' * 60}{turn}.example.org/tcp/4101" for turn in range(9)]
    lan = "/ip4/10.0.0.1/tcp/4101"
    link = format_link(RUN, [lan, *long])
    assert parse_link(link).addresses == (long[0], lan)
    assert left_out(link, [lan, long[0], long[1]]) == [long[1]]


@given(
    number=st.integers(1, 2**48),
    begins=st.binary(min_size=8, max_size=8),
    branch=st.one_of(st.just(RUN[:8]), st.binary(min_size=8, max_size=8)),
    addresses=st.lists(multiaddrs, max_size=12),
)
def test_an_anchor_comes_out_of_a_link_and_costs_a_few_letters(
    number: int, begins: bytes, branch: bytes, addresses: list[str]
) -> None:
    anchor = Anchor(number, begins, branch)
    link = format_link(RUN, addresses, anchor=anchor)
    assert parse_link(link).anchor == anchor
    assert bool(parse_link(link).addresses) is bool(addresses)
    assert len(link) <= min(MAX_LINK, len(format_link(RUN, addresses)) + (27 if branch == RUN[:8] else 43))


# -- what is understood -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pasted",
    [
        LINK,
        f"  \n<{LINK}>\n",
        f"'{LINK}'",
        f"“{LINK}”.",
        f"({LINK.upper()}),",
        LINK.capitalize(),
        encode_link(RUN, [(DIRECT, bytes([192, 0, 2, 7, 0x10, 0x05])), (OTHER, HERE.encode())]),
        encode_link(RUN, [(9, b"of later nodes"), (OTHER, HERE.encode()), (200, b"")]),
    ],
    ids=["plain", "in brackets", "quoted", "in a sentence", "shouted", "begun like one", "twice", "later fields"],
)
def test_what_chats_make_of_a_link_is_one_still(pasted: str) -> None:
    assert parse_link(pasted) == RunLink(RUN, (HERE,))


def test_a_link_needs_no_address() -> None:
    assert parse_link(format_link(RUN, [])) == RunLink(RUN)


@given(st.text(max_size=450))
def test_any_text_is_a_link_or_one_sentence(text: str) -> None:
    for each in (text, f"shoal2{text}", f"{LINK}{text}"):
        with suppress(LocalError):
            assert all(map(is_address, parse_link(each).addresses))


@given(st.binary(max_size=200))
def test_any_fields_are_addresses_or_one_sentence(fields: bytes) -> None:
    with suppress(LocalError):
        assert all(map(is_address, parse_link(sealed(RUN + fields)).addresses))


@pytest.mark.parametrize("text", ["shoal2abc", "SHOAL3X", "shoal:", f"<{LINK}>", "shoal2 2"])
def test_what_is_meant_to_be_a_link(text: str) -> None:
    assert looks_like_link(text)


@pytest.mark.parametrize("text", ["", "shoal", "shoal0abc", "shoal2.toml", "./shoal2abc", "shoal2/run.toml", RUN.hex()])
def test_what_is_not(text: str) -> None:
    assert not looks_like_link(text)


# -- what is refused ----------------------------------------------------------------------------------------


def test_every_link_that_was_cut_off_says_so() -> None:
    for length in range(len("shoal2"), len(LINK)):
        with pytest.raises(LocalError, match=r"^the link is cut off: these are \d+ of its \d+ characters") as refusal:
            parse_link(LINK[:length])
        assert f"these are {length} of" in str(refusal.value)


def test_every_letter_that_was_changed_is_noticed() -> None:
    for place in range(len("shoal2"), len(LINK)):
        for other in "a7":
            if LINK[place] != other:
                with pytest.raises(LocalError, match="a letter of the link was changed"):
                    parse_link(LINK[:place] + other + LINK[place + 1 :])


@given(st.text("abcdefghijklmnopqrstuvwxyz234567", min_size=1, max_size=400))
def test_letters_behind_the_end_are_noticed(more: str) -> None:
    with pytest.raises(LocalError, match=f"the link has {len(more)} characters too many at its end"):
        parse_link(LINK + more)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is no link to a run: that is one word"),
        ("https://example.org/?shoal:", "is no link to a run"),
        (RUN.hex(), "is no link to a run"),
        (LINK[1:], "is no link to a run"),
        (LINK.replace("shoal2", "shoal3"), "made by a newer Shoal.*version 3.*reads 2.*update Shoal on this machine"),
        ("shoal9whatever", "made by a newer Shoal"),
        (f"shoal:{RUN.hex()}?p={HERE}", "of an older Shoal.*`shoal run link`"),
        ("SHOAL:", "of an older Shoal"),
        (LINK.replace("shoal2", "shoal1"), "of an older Shoal, as it begins with shoal1.*`shoal run link`"),
        (f"{LINK[:20]}0{LINK[21:]}", "has '0' in it, which no link has"),
        (f"{LINK} and more", "has ' ' in it"),
        (f"{LINK[:20]}\x1b[2J", r"has '\?' in it"),
        (f"{LINK}{'a' * 100_000}", "characters too many"),
        (sealed(RUN[:31]), "cut off"),
        (sealed(RUN + bytes([DIRECT])), "last field is not whole"),
        (sealed(RUN + bytes([DIRECT, 6, 1])), "last field is not whole"),
        (encode_link(RUN, [(DIRECT, b"")]), "'' for an address"),
        (encode_link(RUN, [(DIRECT, bytes(7))]), "for an address"),
        (encode_link(RUN, [(DIRECT, bytes(6))]), "'/ip4/0.0.0.0/tcp/0' for an address"),
        (encode_link(RUN, [(RELAYED, bytes(64))]), "for an address"),
        (encode_link(RUN, [(OTHER, b"")]), "'' for an address"),
        (encode_link(RUN, [(ANCHOR, bytes(8))]), "names no entry"),
        (encode_link(RUN, [(ANCHOR, bytes(9))]), "names no entry"),
        (encode_link(RUN, [(ANCHOR, b"\1" * 16)]), "names no entry"),
        (encode_link(RUN, [(ANCHOR, b"\1" * 9), (BRANCH, b"\1" * 7)]), "names no entry"),
        (encode_link(RUN, [(OTHER, b"\xff")]), "'ff' for an address"),
        (encode_link(RUN, [(OTHER, b"192.0.2.7:4101")]), "for an address"),
        (encode_link(RUN, [(OTHER, b"/ip4/192.0.2.700/tcp/4101")]), "for an address"),
        (encode_link(RUN, [(OTHER, b"/ip6/192.0.2.7/tcp/4101")]), "for an address"),
        (encode_link(RUN, [(OTHER, b"/ip4/192.0.2.7/tcp/65536")]), "for an address"),
        (encode_link(RUN, [(OTHER, b"/ip4/192.0.2.7/tcp/4101/")]), "for an address"),
        (encode_link(RUN, [(OTHER, b"/dns4/a\nb/tcp/4101")]), "for an address"),
        (encode_link(RUN, [(OTHER, b"/unix/x/tcp/1")]), "for an address"),
    ],
)
def test_garbage_is_refused_in_one_sentence(text: str, complaint: str) -> None:
    with pytest.raises(LocalError, match=complaint) as refusal:
        parse_link(text)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 300


def test_a_link_longer_than_any_that_we_make_is_refused() -> None:
    """It might name hundreds of hosts, all of which would be dialled at once."""
    with pytest.raises(LocalError, match="the link"):
        parse_link(encode_link(RUN, [(99, b"x" * 30)] * 10))
