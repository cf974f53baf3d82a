"""The shell of port mappings with a small fake router: what others are told, what is shown, what is removed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from ipaddress import IPv4Network
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.dht.reachability import Verdict
from shoal.node.base.options import NodeSettings
from shoal.node.peers import port_mapping
from shoal.node.peers.gateway import upkeep
from shoal.node.peers.gateway.router import Declined, GatewayError, HomeNetwork, PortLease, RouterStatus
from shoal.node.peers.port_mapping import PortMapping, may_map

OUTSIDE, PLACE = "203.0.113.7", "/ip4/203.0.113.7/tcp/4101"
HOME = HomeNetwork("192.168.1.2", IPv4Network("192.168.1.0/24"), "192.168.1.1")
LIMIT = 10.0
MAPPED: Any = {
    "protocol": "upnp",
    "external": f"{OUTSIDE}:4101",
    "error": None,
    "behind_another_nat": None,
    "pending": False,
}


class Router:
    """Speaks a protocol of its own."""

    protocol = "upnp"

    def __init__(self, host: str = OUTSIDE) -> None:
        self.host, self.held = host, dict[int, PortLease]()
        self.refusal: GatewayError | None = None
        self.wishes = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def look(self, leases: Sequence[PortLease]) -> RouterStatus:
        await self.may_answer.wait()
        return RouterStatus(self.host, tuple(each.port for each in leases if each.port not in self.held))

    async def map(self, port: int, external: int, lifetime: int) -> PortLease:
        self.wishes += 1
        if self.refusal is not None:
            raise self.refusal
        self.held[port] = PortLease(port, external, lifetime)
        return self.held[port]

    async def unmap(self, lease: PortLease) -> None:
        del self.held[lease.port]


class Around:
    """The daemon's other parts, as far as they matter here."""

    def __init__(self) -> None:
        self.mapped_addresses: tuple[str, ...] = ()
        self.verdict = Verdict()
        self.seen_hosts: frozenset[str] = frozenset()
        self.moves = 0
        self.door: int | None = None

    def set_mapped_port(self, port: int | None) -> None:
        self.door = port

    def own_addresses(self) -> tuple[str, ...]:
        return ("/ip4/192.168.1.2/tcp/4101", "/ip4/127.0.0.1/tcp/4101")

    def links(self) -> list[Any]:
        return [SimpleNamespace(addresses=("/ip4/198.51.100.2/tcp/4101",))]

    def moved(self) -> None:
        self.moves += 1


@asynccontextmanager
async def mapping(
    around: Any, folder: Path, found: Callable[[], Router], place: HomeNetwork | None = HOME
) -> AsyncIterator[PortMapping]:
    async def find(home: HomeNetwork) -> Router:
        return found()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(port_mapping, "find_router", find)
        patch.setattr(port_mapping, "home_network", lambda listen_host: place)
        patch.setattr(port_mapping, "CHECK_EVERY", 0.01)
        us = PortMapping(NodeSettings(folder), around, around, around, lambda: None)
        task = asyncio.create_task(us.run())
        try:
            yield us
        finally:
            task.cancel()
            await asyncio.wait([task])


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT):
        while not condition():
            await asyncio.sleep(0.005)


def shown(us: PortMapping) -> Any:
    said = us.as_json()
    assert said is not None
    return said


def codes(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.code for record in caplog.records if hasattr(record, "code")]


def test_a_mapped_address_is_named_to_others_and_removed_at_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        around, router = Around(), Router()
        async with mapping(around, tmp_path, lambda: router) as us:
            await until(lambda: around.mapped_addresses == (PLACE,))
            assert us.external_place(4101) == (OUTSIDE, 4101)
            await until(lambda: around.door == 4102)
            assert us.external_place(4103) is None
            assert us.as_json() == MAPPED
            around.verdict = Verdict((PLACE,), "public")
            assert shown(us) == {**MAPPED, "behind_another_nat": False}
        assert (around.moves, router.held) == (1, {})

    with caplog.at_level(logging.INFO):
        asyncio.run(main())
    assert codes(caplog) == ["port-mapped"]


@pytest.mark.parametrize(("host", "seen_at"), [("100.64.0.9", ()), ("192.168.0.4", ()), (OUTSIDE, ("198.51.100.9",))])
def test_what_leads_into_another_nat_is_not_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, host: str, seen_at: tuple[str, ...]
) -> None:
    async def main() -> None:
        around = Around()
        around.seen_hosts = frozenset(seen_at)
        async with mapping(around, tmp_path, lambda: Router(host)) as us:
            await until(lambda: us.external_place(4101) is not None and bool(shown(us)["behind_another_nat"]))
            await until(lambda: "behind-another-nat" in codes(caplog))
            assert around.mapped_addresses == ()
            assert host in shown(us)["error"]
            assert "bridge mode" in caplog.text

    with caplog.at_level(logging.INFO):
        asyncio.run(main())


def test_an_address_that_proves_to_lead_nowhere_is_withdrawn(tmp_path: Path) -> None:
    async def main() -> None:
        around = Around()
        async with mapping(around, tmp_path, Router):
            await until(lambda: around.mapped_addresses == (PLACE,))
            around.seen_hosts = frozenset(("198.51.100.9",))
            await until(lambda: around.mapped_addresses == ())

    asyncio.run(main())


def test_a_router_that_declines_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        around, router = Around(), Router()
        router.refusal = Declined("the router does not let us (UPnP)")
        async with mapping(around, tmp_path, lambda: router) as us:
            await until(lambda: shown(us)["error"] == "the router does not let us (UPnP)")
            await until(lambda: bool(codes(caplog)))
            assert (shown(us)["protocol"], shown(us)["external"]) == ("upnp", None)

    with caplog.at_level(logging.INFO):
        asyncio.run(main())
    assert codes(caplog) == ["port-mapping-refused"]
    assert "forward TCP 4101 and 4102 to this machine" in caplog.text


def test_nonsense_in_answer_to_a_wish_for_a_port_is_no_reason_to_hurry(tmp_path: Path) -> None:
    async def main() -> None:
        router, searches = Router(), list[Router]()
        router.refusal = GatewayError("the router answers with HTTP 401")

        def found() -> Router:
            searches.append(router)
            return router

        async with mapping(Around(), tmp_path, found) as us:
            await until(lambda: shown(us)["error"] == "the router answers with HTTP 401")
            for _ in range(100):
                await asyncio.sleep(0)
            assert (len(searches), router.wishes) == (1, 2), "one for each port"

    asyncio.run(main())


def test_our_own_mistake_is_said_and_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def out_of_handles() -> Router:
        raise OSError(24, "Too many open files")

    async def main() -> None:
        async with mapping(Around(), tmp_path, out_of_handles) as us:
            await until(lambda: "Too many open files" in str(shown(us)["error"]))

    asyncio.run(main())
    assert [each.levelname for each in caplog.records if "Too many open files" in each.message] == ["ERROR"]


def test_a_look_at_our_own_network_in_vain_costs_no_mapping(tmp_path: Path) -> None:
    async def main() -> None:
        around, looks = Around(), 0

        def out_of_handles(listen_host: str) -> HomeNetwork:
            nonlocal looks
            looks += 1
            raise OSError(24, "Too many open files")

        async with mapping(around, tmp_path, Router) as us:
            await until(lambda: us.as_json() == MAPPED)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(port_mapping, "home_network", out_of_handles)
                await until(lambda: looks > 5)
                assert us.as_json() == MAPPED

    asyncio.run(main())


def test_where_no_router_answers_nobody_is_warned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def nobody() -> Router:
        raise GatewayError("nobody answers")

    async def main() -> None:
        async with mapping(Around(), tmp_path, nobody) as us:
            await until(lambda: shown(us)["error"] == "nobody answers" and bool(codes(caplog)))
            assert shown(us)["protocol"] is None

    with caplog.at_level(logging.INFO):
        asyncio.run(main())
    assert codes(caplog) == ["port-mapping-none"]
    assert all(record.levelno < logging.WARNING for record in caplog.records)


def test_until_the_router_has_answered_that_is_pending(tmp_path: Path) -> None:
    async def main() -> None:
        router = Router()
        router.may_answer.clear()
        async with mapping(Around(), tmp_path, lambda: router) as us:
            assert shown(us)["pending"]
            await until(lambda: shown(us)["protocol"] == "upnp")
            assert shown(us)["pending"]
            router.may_answer.set()
            await until(lambda: us.as_json() == MAPPED)

    asyncio.run(main())


def test_an_answer_in_the_negative_is_one(tmp_path: Path) -> None:
    async def main() -> None:
        router = Router()
        router.refusal = Declined("no")
        async with mapping(Around(), tmp_path, lambda: router) as us:
            await until(lambda: not shown(us)["pending"])
            assert shown(us)["error"] == "no"

    asyncio.run(main())


def test_where_nobody_is_asked_nothing_is_shown(tmp_path: Path) -> None:
    async def main() -> None:
        around: Any = Around()
        async with mapping(around, tmp_path, Router, place=None) as us:
            await until(lambda: us.as_json() is None)
        off = NodeSettings(tmp_path, port_mapping=False)
        assert PortMapping(off, around, around, around, lambda: None).as_json() is None

    asyncio.run(main())


@pytest.mark.parametrize(
    ("host", "wanted", "expected"),
    [
        ("0.0.0.0", True, True),
        ("192.168.1.2", True, True),
        ("0.0.0.0", False, False),
        ("127.0.0.1", True, False),
        ("::1", True, False),
        ("::", True, False),
    ],
)
def test_it_is_on_where_a_router_could_help(tmp_path: Path, host: str, wanted: bool, expected: bool) -> None:
    assert may_map(NodeSettings(tmp_path, listen_host=host, port_mapping=wanted)) is expected


def test_the_door_of_bulk_sockets_is_named_by_its_port_outside_whatever_that_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "LOOK", 0.02)

    class Odd(Router):
        async def map(self, port: int, external: int, lifetime: int) -> PortLease:
            return await super().map(port, external + (20_000 if port == 4102 else 0), lifetime)

    async def main() -> None:
        around, router = Around(), Odd()
        async with mapping(around, tmp_path, lambda: router):
            await until(lambda: around.door == 24102)
            assert around.mapped_addresses == (PLACE,)
            router.host = "100.64.0.9"  # behind another NAT now
            await until(lambda: around.door is None)
        assert not router.held

    asyncio.run(main())


def test_a_door_that_is_not_to_be_had_keeps_nobody_from_the_first_port(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Mean(Router):
        async def map(self, port: int, external: int, lifetime: int) -> PortLease:
            if port == 4102:
                self.wishes += 1
                raise Declined("one is enough")
            return await super().map(port, external, lifetime)

    async def main() -> None:
        around, router = Around(), Mean()
        async with mapping(around, tmp_path, lambda: router) as us:
            await until(lambda: router.wishes == 2)
            await until(lambda: around.mapped_addresses == (PLACE,))
            assert us.as_json() == MAPPED
            assert around.door is None

    with caplog.at_level(logging.INFO):
        asyncio.run(main())
    assert codes(caplog) == ["port-mapped"]
