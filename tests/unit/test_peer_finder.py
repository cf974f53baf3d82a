"""How a node finds others: by given addresses, by the peers that it saw last, and on its own network."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from shoal.node.peers import peer_finder
from shoal.node.peers.peer_finder import Kind, PeerFinder, Unanswered
from shoal.node.peers.remembered import PeerCache
from shoal.protocol.base.errors import LocalError, TransportError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.multiaddrs import OwnNetworks
from shoal.protocol.net.peers.dialing import Unreachable
from shoal.protocol.net.peers.network import Network

ANNA, BERT, CARL = PeerId("anna"), PeerId("bert"), PeerId("carl")
WHERE = {ANNA: ("/ip4/192.0.2.1/tcp/1", "/ip4/192.0.2.1/tcp/2"), BERT: ("/ip4/192.0.2.2/tcp/1",)}
FIRST, SECOND = "/ip4/192.0.2.8/tcp/4101", "/ip4/192.0.2.9/tcp/4101"


class Doors:
    """A network that fails a number of times at each address, or hangs there."""

    def __init__(self, failures: Mapping[str, int] | None = None, error: Exception | None = None) -> None:
        self.left = dict(failures or {})
        self.error = error or TransportError("connection refused")
        self.hang = set[str]()
        self.tried: list[str] = []
        self.open: list[str] = []

    def remember(self, peer: PeerId, addresses: tuple[str, ...]) -> None:
        pass

    def links(self) -> list[object]:
        return []

    @property
    def own_networks(self) -> OwnNetworks:
        return OwnNetworks()

    async def name_at(self, address: str) -> PeerId:
        if address in self.hang:
            raise TransportError("no answer in 10 s")
        return ANNA

    async def connect(self, address: str) -> PeerId:
        self.tried.append(address)
        if address in self.hang:
            await asyncio.Event().wait()
        self.left[address] = self.left.get(address, 0) - 1
        if self.left[address] >= 0:
            raise self.error
        self.open.append(address)
        return PeerId(address.partition("/p2p/")[2] or ANNA)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RETRY_FIRST", "RETRY_MOST", "LOOK", "STAGGER"):
        monkeypatch.setattr(peer_finder, name, 0.001)


@pytest.fixture
def cache(tmp_path: Path) -> PeerCache:
    return PeerCache(tmp_path / "peers.json")


def made(doors: Doors, cache: PeerCache, *bootstrap: str) -> PeerFinder:
    return PeerFinder(cast(Network, doors), bootstrap, cache, lambda: not doors.open)


@asynccontextmanager
async def working(seeking: PeerFinder) -> AsyncIterator[None]:
    task = asyncio.create_task(seeking.run())
    yield
    assert not task.done()  # it goes on for good
    task.cancel()
    await asyncio.wait([task])


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


def said(caplog: pytest.LogCaptureFixture, words: str) -> int:
    return sum(words in record.getMessage() for record in caplog.records)


# -- addresses that somebody gave us ------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_an_address_is_tried_until_it_answers_and_named_once(
    cache: PeerCache, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    doors = Doors({FIRST: 3})
    seeking = made(doors, cache, FIRST)
    async with working(seeking):
        await until(lambda: len(doors.tried) >= 2)
        words = f"({FIRST}: connection refused)"
        assert seeking.obstacle() == f"nobody has answered yet, tried 1 bootstrap address; trying again {words}"
        await until(lambda: seeking.obstacle() is None)
    assert doors.tried == [FIRST] * 4
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert FIRST in warnings[0]
    assert "connection refused" in warnings[0]
    assert said(caplog, f"{FIRST} answers now") == 1


@pytest.mark.asyncio
async def test_an_address_that_swallows_everything_delays_no_other(cache: PeerCache) -> None:
    doors = Doors()
    doors.hang = {FIRST}
    async with working(made(doors, cache, FIRST, SECOND)):
        await until(lambda: cache.load() == {ANNA: (SECOND,)})
    assert doors.open == [SECOND]


@pytest.mark.asyncio
async def test_a_broken_address_of_a_peer_that_was_reached_otherwise_is_named(
    cache: PeerCache, caplog: pytest.LogCaptureFixture
) -> None:
    doors = Doors()
    seeking = made(doors, cache, FIRST)
    connect = doors.connect

    async def connect_otherwise(address: str) -> PeerId:
        doors.hang = set()
        peer = await connect(address)
        doors.hang = {FIRST}
        return peer

    doors.connect = connect_otherwise  # type: ignore[method-assign]
    async with working(seeking):
        await until(lambda: said(caplog, FIRST))
    assert "no answer in 10 s" in caplog.text


@pytest.mark.asyncio
async def test_an_address_is_tried_again_when_everybody_is_lost(cache: PeerCache) -> None:
    doors = Doors({FIRST: 1})
    async with working(made(doors, cache, FIRST)):
        await until(lambda: doors.open)
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert len(doors.tried) == 2  # somebody is there
        doors.left[FIRST] = 5
        doors.open.clear()
        await until(lambda: doors.open)
    assert doors.tried == [FIRST] * 8


@pytest.mark.asyncio
async def test_an_address_that_leads_to_ourselves_is_said_once_and_tried_again(
    cache: PeerCache, caplog: pytest.LogCaptureFixture
) -> None:
    doors = Doors({FIRST: 3}, LocalError("this node itself"))
    seeking = made(doors, cache, FIRST)
    async with working(seeking):
        await until(lambda: len(doors.tried) > 1)
        assert "this node itself" in str(seeking.obstacle())
        assert seeking.is_misled
        await until(lambda: doors.open)
        await until(lambda: seeking.obstacle() is None)
    assert said(caplog, "cannot be used: this node itself") == 1
    assert doors.tried[:4] == [FIRST] * 4


@pytest.mark.asyncio
async def test_who_answers_in_anothers_place_is_greeted_while_somebody_is_missed(cache: PeerCache) -> None:
    doors = Doors()
    doors.hang = {SECOND}
    seeking = made(doors, cache)
    seeking.greet_stranger(FIRST)  # too early: nothing has begun yet
    async with working(seeking):
        await asyncio.sleep(0)
        for _ in range(3):
            seeking.greet_stranger(SECOND)
        seeking.greet_stranger(FIRST)
        await until(lambda: cache.load() == {ANNA: (FIRST,)})
        assert doors.tried.count(SECOND) == 1, "one greeting at a time"
        before = len(doors.tried)
        seeking.greet_stranger("/ip4/192.0.2.7/tcp/1")
        await asyncio.sleep(0.01)
        assert len(doors.tried) == before, "nobody is missed"


@pytest.mark.asyncio
async def test_what_was_tried_is_said_the_most_telling_first(cache: PeerCache) -> None:
    cache.update({PeerId(f"peer{number}"): (f"/ip4/192.0.2.{number}/tcp/1",) for number in range(9)})
    doors = Doors({f"/ip4/192.0.2.{number}/tcp/1/p2p/peer{number}": 10**6 for number in range(9)})
    refuse = doors.connect

    async def connect(address: str) -> PeerId:
        if address.endswith("peer8"):
            raise TransportError("somebody else answers there", "other-identity")
        return await refuse(address)

    doors.connect = connect  # type: ignore[method-assign]
    seeking = made(doors, cache)
    async with working(seeking):
        await until(lambda: "9 peers seen before" in str(seeking.obstacle()))
        words = str(seeking.obstacle())
        assert "(peer8: somebody else answers there; peer" in words
        assert words.endswith("and 6 more)")
        assert seeking.is_misled


RELAY = "/ip4/192.0.2.7/tcp/1/p2p/12D3KooWrelay1"


@pytest.mark.parametrize(
    ("failed", "said"),
    [
        (
            {
                f"{FIRST}/p2p/anna": {FIRST: "connection refused", SECOND: "no answer in 10 s"},
                f"{SECOND}/p2p/anna": {FIRST: "connection refused", SECOND: "no answer in 10 s"},
                "anna": {SECOND: "no answer in 10 s", FIRST: "connection refused"},
            },
            f"{FIRST}: connection refused; {SECOND}: no answer in 10 s",
        ),
        (
            {"anna": dict.fromkeys(["/ip4/127.0.0.1/tcp/1", "/ip4/172.17.0.1/tcp/1", FIRST], "connection refused")},
            f"{FIRST}: connection refused",
        ),
        ({"anna": {"/ip4/127.0.0.1/tcp/1": "refused"}}, "/ip4/127.0.0.1/tcp/1: refused"),
        ({"anna": {}}, "anna: no address is known"),
        (
            {"anna": {f"{RELAY}/p2p-circuit": "it knows nobody; or it sleeps"}},
            "the relay relay1 at /ip4/192.0.2.7/tcp/1: it knows nobody; or it sleeps",
        ),
    ],
)
def test_each_address_is_named_once_and_none_that_leads_nowhere_else(
    failed: dict[str, dict[str, str]], said: str
) -> None:
    unanswered = Unanswered()
    for target, reasons in failed.items():
        error = Unreachable(reasons, "", "anna") if reasons else TransportError("no address is known")
        unanswered.failed(target, Kind.LINK if "/" in target else Kind.KNOWN, error)
    assert str(unanswered.summary(has_answered=True)).partition("trying again ")[2] == f"({said})"


@pytest.mark.asyncio
async def test_who_has_answered_before_does_not_count_as_never_heard_of(cache: PeerCache) -> None:
    doors = Doors({FIRST: 10**6})
    seeking = made(doors, cache, FIRST)
    async with working(seeking):
        await until(lambda: "nobody has answered yet" in str(seeking.obstacle()))
        seeking.link(BERT, up=True)
        seeking.link(BERT, up=False)
        assert str(seeking.obstacle()).startswith("nobody answers now, tried 1 bootstrap address; trying again (")


@pytest.mark.asyncio
@pytest.mark.parametrize("before", [True, False])
async def test_the_addresses_of_a_link_are_tried_side_by_side(cache: PeerCache, before: bool) -> None:
    doors = Doors()
    doors.hang = {FIRST}
    seeking = made(doors, cache)
    assert not seeking.has_given_addresses
    if before:
        seeking.add_linked((FIRST, SECOND))
    async with working(seeking):
        await asyncio.sleep(0)
        if not before:
            seeking.add_linked((FIRST, SECOND))
        await until(lambda: doors.open)
        assert doors.open == [SECOND]
        assert seeking.has_given_addresses
        seeking.add_linked((FIRST,))  # once more, at once
        await until(lambda: doors.tried.count(FIRST) == 2)


@pytest.mark.asyncio
async def test_links_make_us_knock_at_a_bounded_number_of_doors(
    cache: PeerCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_finder, "LINKED", 2)
    doors = Doors({f"/ip4/192.0.2.{i}/tcp/1": 10**6 for i in range(9)})
    seeking = made(doors, cache)
    async with working(seeking):
        await asyncio.sleep(0)
        seeking.add_linked(list(doors.left))
        await until(lambda: {*doors.tried[-9:]} == {"/ip4/192.0.2.7/tcp/1", "/ip4/192.0.2.8/tcp/1"})
        assert "nobody has answered yet, tried 2 addresses of links; trying again" in str(seeking.obstacle())


# -- peers that we know of ----------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_the_peers_of_the_last_life_are_tried_while_nobody_is_there(cache: PeerCache) -> None:
    cache.update(WHERE)
    doors = Doors({f"{WHERE[ANNA][0]}/p2p/anna": 99, f"{WHERE[BERT][0]}/p2p/bert": 2})
    seeking = made(doors, cache)
    async with working(seeking):
        await until(lambda: len(doors.tried) >= 2)
        assert "nobody has answered yet, tried 2 peers seen before; trying again" in str(seeking.obstacle())
        await until(lambda: doors.open)
        assert doors.open == [f"{WHERE[BERT][0]}/p2p/bert"]
        await until(lambda: next(iter(cache.load())) == BERT)
        doors.open.clear()
        await until(lambda: doors.open)


@pytest.mark.asyncio
async def test_a_remembered_peer_that_swallows_everything_delays_no_other(cache: PeerCache) -> None:
    cache.update(WHERE)
    doors = Doors()
    doors.hang = {f"{WHERE[ANNA][0]}/p2p/anna"}
    async with working(made(doors, cache)):
        await until(lambda: doors.open)


@pytest.mark.asyncio
async def test_silence_counts_only_while_others_answer(cache: PeerCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.update(WHERE)
    missed: list[list[PeerId]] = []
    monkeypatch.setattr(PeerCache, "missed", lambda self, peers: missed.append(peers))
    doors = Doors({f"{WHERE[ANNA][0]}/p2p/anna": 10**6, f"{WHERE[BERT][0]}/p2p/bert": 3})
    async with working(made(doors, cache)):
        await until(lambda: doors.open and missed)
    assert doors.tried.count(f"{WHERE[BERT][0]}/p2p/bert") == 4
    assert missed == [[ANNA]]


@pytest.mark.asyncio
async def test_who_is_heard_on_the_network_is_greeted_though_nobody_is_missed(cache: PeerCache) -> None:
    doors = Doors()
    seeking = made(doors, cache, FIRST)
    async with working(seeking):
        await until(lambda: doors.open)
        seeking.on_announced(CARL, ("/ip4/192.0.2.3/tcp/1",))
        seeking.on_announced(CARL, ("/ip4/192.0.2.3/tcp/1",))  # no news
        await until(lambda: cache.load().get(CARL) == ("/ip4/192.0.2.3/tcp/1",))
        seeking.on_announced(CARL, ("/ip4/192.0.2.4/tcp/1",))  # it has got another address
        await until(lambda: cache.load().get(CARL) == ("/ip4/192.0.2.4/tcp/1", "/ip4/192.0.2.3/tcp/1"))
    assert doors.open == [FIRST, "/ip4/192.0.2.3/tcp/1/p2p/carl", "/ip4/192.0.2.4/tcp/1/p2p/carl"]


@pytest.mark.asyncio
async def test_hearsay_is_bounded_and_forgotten(cache: PeerCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_finder, "NEARBY", 2)
    doors = Doors({f"/ip4/192.0.2.3/tcp/1/p2p/{name}": 10**6 for name in "abc"})
    seeking = made(doors, cache)
    async with working(seeking):
        await asyncio.sleep(0)
        for name in "abc":
            seeking.on_announced(PeerId(name), ("/ip4/192.0.2.3/tcp/1",))
        await until(lambda: "2 peers on this network" in (seeking.obstacle() or ""))
        assert not any(door.endswith("/p2p/c") for door in doors.tried)
        seeking.on_withdrawn(PeerId("a"))
        seeking.on_announced(PeerId("c"), ("/ip4/192.0.2.3/tcp/1",))
        await until(lambda: any(door.endswith("/p2p/c") for door in doors.tried))


@pytest.mark.asyncio
async def test_who_comes_and_goes_leaves_nothing_behind(cache: PeerCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_finder, "NEARBY", 3)
    doors, name_of = Doors(), "/ip4/192.0.2.3/tcp/1/p2p/{}".format
    names = [f"ghost{number}" for number in range(20)]
    doors.hang = {name_of(name) for name in names}
    seeking = made(doors, cache, FIRST)
    async with working(seeking):
        await until(lambda: doors.open)
        for name in names:
            seeking.on_announced(PeerId(name), ("/ip4/192.0.2.3/tcp/1",))
            seeking.on_withdrawn(PeerId(name))
            await asyncio.sleep(0)
        assert len(seeking._greetings) <= 3
        assert not doors.hang.intersection(doors.tried)  # nobody was there any more when the turn had come
    seeking.on_announced(CARL, ("/ip4/192.0.2.3/tcp/1",))  # the node is ending
    assert not seeking._greetings


@pytest.mark.asyncio
async def test_a_late_failure_at_a_door_that_was_unheard_is_of_no_interest(cache: PeerCache) -> None:
    doors, called = Doors(), asyncio.Event()
    seeking = made(doors, cache)

    async def connect_slowly(address: str) -> PeerId:
        seeking.on_withdrawn(CARL)
        called.set()
        raise TransportError("no answer in 10 s")

    doors.connect = connect_slowly  # type: ignore[method-assign]
    async with working(seeking):
        await asyncio.sleep(0)
        seeking.on_announced(CARL, ("/ip4/192.0.2.3/tcp/1",))
        await until(called.is_set)
        await until(lambda: not seeking._greetings)
        assert seeking.obstacle() is None


@pytest.mark.asyncio
async def test_a_name_may_stand_for_several_nodes(
    cache: PeerCache, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def resolve(address: str) -> tuple[str, ...]:
        return (FIRST, SECOND)

    async def name_at(address: str) -> PeerId:
        asked.append(address)
        return {FIRST: ANNA, SECOND: BERT}[address]

    asked: list[str] = []
    doors = Doors()
    doors.name_at = name_at  # type: ignore[method-assign]
    monkeypatch.setattr(peer_finder, "resolve", resolve)
    async with working(made(doors, cache, "/dns4/all.example/tcp/4101")):
        await until(lambda: SECOND in asked)
        await asyncio.sleep(0)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.asyncio
async def test_where_a_name_does_not_lead_any_more_is_forgotten(
    cache: PeerCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its addresses rotate, and some were somebody else's; what another name still leads to stays."""
    name, other = "/dns4/all.example/tcp/4101", "/dns4/other.example/tcp/4101"
    leads = {name: (FIRST, SECOND), other: (SECOND,)}

    async def resolve(address: str) -> tuple[str, ...]:
        return leads[address]

    async def connect(address: str) -> PeerId:
        return ANNA

    doors = Doors()
    doors.hang = {FIRST, SECOND}
    doors.connect = connect  # type: ignore[method-assign]
    monkeypatch.setattr(peer_finder, "resolve", resolve)
    seeking = PeerFinder(cast(Network, doors), (), cache, lambda: True)
    async with working(seeking):
        await asyncio.sleep(0)
        seeking.add_linked((name, other))
        await until(lambda: seeking._unanswered.has_failed(FIRST) and seeking._unanswered.has_failed(SECOND))
        leads[name] = ("/ip4/192.0.2.7/tcp/4101",)
        await until(lambda: not seeking._unanswered.has_failed(FIRST))
        assert seeking._unanswered.has_failed(SECOND)
        leads[other] = ()
        await until(lambda: seeking.obstacle() is None)


@pytest.mark.asyncio
async def test_an_address_that_answered_outlives_those_that_did_not(
    cache: PeerCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(peer_finder, "LINKED", 2)
    third = "/ip4/192.0.2.7/tcp/4101"
    doors = Doors({SECOND: 10**6})
    seeking = PeerFinder(cast(Network, doors), (), cache, lambda: True)
    async with working(seeking):
        await asyncio.sleep(0)
        seeking.add_linked((FIRST, SECOND))
        await until(lambda: FIRST in doors.open and SECOND in str(seeking.obstacle()))
        seeking.add_linked((third,))
        await until(lambda: third in doors.open)
        assert list(seeking._linked) == [FIRST, third]
    assert said(caplog, f"the address {SECOND} of a link is not tried any more") == 1


@pytest.mark.asyncio
async def test_on_a_large_network_peers_of_our_last_life_come_first_and_the_others_wait_for_room(
    cache: PeerCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(peer_finder, "NEARBY", 2)
    cache.update({ANNA: ("/ip4/192.0.2.1/tcp/1",)})
    seeking = made(Doors(), cache)
    where = ("/ip4/192.0.2.3/tcp/1",)
    for name in "abc":
        seeking.on_announced(PeerId(name), where)
    assert list(seeking._nearby) == ["a", "b"]
    seeking.on_announced(ANNA, where)
    assert list(seeking._nearby) == ["b", ANNA]
    seeking.on_withdrawn(PeerId("b"))
    assert list(seeking._nearby) == [ANNA, "c"], "who has waited longest"
    seeking.on_withdrawn(PeerId("c"))
    assert list(seeking._nearby) == [ANNA, "a"]
    assert said(caplog, "more than 2 peers are on this network") == 1


@pytest.mark.asyncio
async def test_a_peer_that_was_met_by_a_name_is_looked_for_by_it(cache: PeerCache) -> None:
    cache.update({ANNA: ("/ip4/192.0.2.1/tcp/1", "/dns4/seed.example/tcp/4101")})
    doors = Doors()
    async with working(made(doors, cache)):
        await until(lambda: doors.open)
    assert doors.open == ["/dns4/seed.example/tcp/4101/p2p/anna"]
