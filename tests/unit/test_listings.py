"""What the DHT says of runs in which this node is not, and how it is used."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from shoal.dht.directory import MEMBER
from shoal.dht.effects import Found, Got
from shoal.dht.keys import PUBLIC_RUNS, run_key
from shoal.dht.link import RunLink, parse_link
from shoal.dht.scope import Scope, worth_dialling
from shoal.node.peers.discovery import Discovery
from shoal.node.peers.listings import MAX_LISTED, MAX_NAME, providers, public_runs
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import Digest, PeerId, RunId
from shoal.protocol.base.wire import Message, encode
from shoal.protocol.messages.dht import Contact, Record
from shoal.protocol.messages.directory import MemberEntry, RunNotice

RUN, OTHER = RunId(b"r" * 32), RunId(b"o" * 32)
ANNA, BERT, EVE = (PeerId(name) for name in ("anna", "bert", "eve"))
HERE, THERE = ("/ip4/203.0.113.1/tcp/4101",), ("/ip4/203.0.113.2/tcp/4101",)
HISTORY = Digest(bytes(32))


def said(author: PeerId, subkey: str, value: Message | bytes) -> Found:
    plain = value if isinstance(value, bytes) else encode(value)
    return Found(Record(Digest(bytes(32)), author, subkey, plain, 1, 2**31, b""), 2)


def discovery(records: dict[Digest, list[Found]], servers: int = 1) -> Discovery:
    async def get(key: Digest) -> Got:
        return Got(1, tuple(records.get(key, ())), 3, 1, 3)

    return cast(
        Discovery,
        SimpleNamespace(
            get=get,
            contacts=lambda: [Contact(ANNA, HERE)] * servers,
            worth_dialling=lambda addresses: worth_dialling(addresses, Scope.INTERNET, ()),
        ),
    )


def notice(run: RunId, author: PeerId, *, name: str = "open", round: int = 3, members: int = 2) -> Found:
    return said(author, run.hex(), RunNotice(run, name, round, members, HERE if author == ANNA else THERE))


@pytest.mark.asyncio
async def test_members_are_asked_where_they_can_be_dialled() -> None:
    members = [said(BERT, MEMBER, MemberEntry(THERE, 3, HISTORY))]
    assert await providers(discovery({run_key(RUN): members}), RUN) == [Contact(BERT, THERE)]
    withdrawn = [said(ANNA, MEMBER, b""), said(EVE, MEMBER, b"\xc1")]
    assert await providers(discovery({run_key(RUN): withdrawn}), RUN) == []
    at_home = MemberEntry(("/ip4/127.0.0.1/tcp/22", "/ip4/192.168.0.1/tcp/80"), 3, HISTORY)
    lured = [said(EVE, MEMBER, at_home), *members]
    assert await providers(discovery({run_key(RUN): lured}), RUN) == [Contact(BERT, THERE)]


@pytest.mark.asyncio
async def test_a_run_is_one_row_however_many_announce_it() -> None:
    found = [notice(RUN, ANNA, round=3), notice(RUN, BERT, round=4, members=5), notice(OTHER, ANNA, members=9)]
    first, second = await public_runs(discovery({PUBLIC_RUNS: found}))
    assert first["run"] == OTHER.hex()
    assert (second["run"], second["round"], second["members"], second["announced_by"]) == (RUN.hex(), 4, 5, 2)
    assert parse_link(second["link"]) == RunLink(RUN, (*HERE, *THERE))


@pytest.mark.asyncio
async def test_what_is_no_announcement_is_not_listed_and_long_names_are_cut() -> None:
    found = [
        said(EVE, RUN.hex(), b"\xc1"),
        said(EVE, RUN.hex(), b""),
        said(EVE, RUN.hex(), MemberEntry(HERE, 1, HISTORY)),
        said(EVE, OTHER.hex(), RunNotice(RUN, "under another's name", 1, 1, HERE)),
        notice(RUN, ANNA, name="x" * 1000),
    ]
    (row,) = await public_runs(discovery({PUBLIC_RUNS: found}))
    assert (row["name"], row["announced_by"]) == ("x" * MAX_NAME, 1)


@pytest.mark.asyncio
async def test_a_flood_of_announcements_is_cut_short() -> None:
    found = [notice(RunId(number.to_bytes(32, "big")), EVE) for number in range(2 * MAX_LISTED)]
    assert len(await public_runs(discovery({PUBLIC_RUNS: found}))) == MAX_LISTED


@pytest.mark.asyncio
async def test_a_node_that_knows_nobody_says_so() -> None:
    with pytest.raises(LocalError, match="connect it with one first"):
        await public_runs(discovery({}, servers=0))
