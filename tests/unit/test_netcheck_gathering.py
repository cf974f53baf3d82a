"""The facts of netcheck: links are pinged, and what is not known yet is waited for, for a bounded time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shoal.node.api.answers import Answer, PortMapping
from shoal.node.daemon.diagnostics import netcheck as gathering
from shoal.node.daemon.diagnostics.netcheck import NetCheck
from shoal.node.peers.discovery import Discovery
from shoal.node.peers.relaying import Relaying
from shoal.protocol.base.errors import TransportError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.paths import DIRECT
from shoal.protocol.messages.dht import Contact
from shoal.protocol.net.measure.link import Link
from shoal.protocol.net.peers.network import Network
from shoal.protocol.net.system.throttle import Throttle

HOME = "/ip4/192.168.1.7/tcp/4101"
FOUR, SIX = "/ip4/203.0.113.9/tcp/4101", "/ip6/2001:db8::9/tcp/4101"
ALICE, BOB = PeerId("alice"), PeerId("bob")
ASKING = {"protocol": None, "external": None, "error": None, "behind_another_nat": None, "pending": True}


class Around:
    """A network, a discovery and relays."""

    def __init__(self) -> None:
        self.throttle = Throttle()
        self.verdict = SimpleNamespace(reachability="nat", addresses=())
        self.is_settled, self.lends, self.nat = True, False, "keeping"
        self.relays: list[PeerId] = []
        self.seen_places: tuple[str, ...] = ()
        self.known: list[Contact] = []
        self.answering: set[str] = set()
        self.measured = 0

    def links(self) -> list[Link]:
        return [Link(ALICE, DIRECT, 20.0, 0, 0, (FOUR,), 0.5 if self.measured else 300.0)]

    def own_addresses(self) -> tuple[str, ...]:
        return (HOME, SIX)

    def remote_addresses(self, peer: PeerId) -> tuple[str, ...]:
        return (FOUR,) if peer == ALICE else ()

    def contacts(self) -> list[Contact]:
        return self.known

    def look_again(self) -> None:
        pass

    def measure(self) -> None:
        self.measured += 1

    async def large_packets_pass(self, peer: PeerId) -> bool:
        return True

    async def name_at(self, address: str) -> PeerId:
        if address not in self.answering:
            raise TransportError("silent", "silent")
        return ALICE


class Alone(Around):
    """Nobody is connected."""

    def links(self) -> list[Link]:
        return []


def netcheck(around: Any, mapped: PortMapping | None = None, runs: Sequence[Answer] = ()) -> NetCheck:
    status: Any = {"port_mapping": mapped, "runs": runs}
    return NetCheck(cast(Network, around), cast(Discovery, around), cast(Relaying, around), lambda: status)


def test_who_is_alone_in_its_own_run_is_told_by_which_command_others_join() -> None:
    row = {"run": "ab" * 32, "name": "ours", "link": "shoal2xyz"}

    async def action(*runs: Answer) -> str:
        return str(netcheck(Alone(), runs=runs).answer()["verdict"]["action"])

    assert asyncio.run(action(row)) == "send this to whoever is to join: shoal run join shoal2xyz"
    assert "--bootstrap" not in asyncio.run(action(row | {"link": None}))
    assert "--bootstrap" in asyncio.run(action())


async def settled(check: NetCheck) -> Answer:
    async with asyncio.timeout(20):
        while not (answer := check.answer())["settled"]:
            await asyncio.sleep(0.01)
    return answer


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "CLOCKS_LIMIT", 0.05)
    monkeypatch.setattr(gathering, "RELAYS_LIMIT", 0.2)


@pytest.mark.asyncio
async def test_clocks_are_asked_anew_and_what_may_come_is_waited_for() -> None:
    around = Around()
    check = netcheck(around)
    first = check.answer()
    assert {"clocks", "relays", "IPv6"} <= set(first["pending"])
    assert first["verdict"]["exit_code"] == 11
    answer = await settled(check)
    assert (around.measured, answer["clock_ahead"]) == (1, 0.5)
    assert answer["verdict"]["exit_code"] == 8, "a relay is not waited for for ever"
    around.relays = [ALICE]
    assert (await settled(check))["verdict"]["exit_code"] == 0


@pytest.mark.asyncio
async def test_a_router_that_is_being_asked_is_waited_for() -> None:
    around = Around()
    around.relays = [ALICE]
    said: Any = dict(ASKING)
    check = netcheck(around, said)
    assert "a port of the router" in check.answer()["pending"]
    said |= {"pending": False, "error": "no router answers"}
    assert "NET-PORTMAP-NONE" in {each["code"] for each in (await settled(check))["findings"]}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("known", "answering", "code"),
    [
        ([], set(), "NET-IPV6-UNTRIED"),
        ([Contact(ALICE, (FOUR, SIX))], set(), "NET-IPV6-SILENT"),
        ([Contact(BOB, (FOUR, SIX))], set(), "NET-IPV6-UNTRIED"),  # it may be gone
        ([Contact(BOB, (FOUR, SIX))], {FOUR}, "NET-IPV6-SILENT"),
        ([Contact(BOB, (FOUR, SIX))], {SIX}, "NET-IPV6-OK"),
    ],
)
async def test_only_who_answers_by_ipv4_can_be_silent_by_ipv6(
    known: list[Contact], answering: set[str], code: str
) -> None:
    around = Around()
    around.relays, around.known, around.answering = [ALICE], known, answering
    assert code in {each["code"] for each in (await settled(netcheck(around)))["findings"]}


@pytest.mark.asyncio
async def test_what_is_tried_ends_with_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "CLOCKS_LIMIT", 1000.0)
    check = netcheck(Around())
    before = asyncio.all_tasks()
    check.answer()
    assert asyncio.all_tasks() > before
    await check.close()
    assert asyncio.all_tasks() == before
