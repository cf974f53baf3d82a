"""The shell of port mappings with a router of a few lines: what is named to others, what is said, what is removed."""

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
from shoal.node import port_mapping
from shoal.node.gateway.routes import Home
from shoal.node.gateway.values import Declined, GatewayError, Lease, Seen
from shoal.node.options import NodeSettings
from shoal.node.port_mapping import PortMapping, may_map

OUTSIDE, PLACE = "203.0.113.7", "/ip4/203.0.113.7/tcp/4101"
HOME = Home("192.168.1.2", IPv4Network("192.168.1.0/24"), "192.168.1.1")
LIMIT = 10.0


class Router:
    """Speaks a protocol of its own."""

    protocol = "upnp"

    def __init__(self, host: str = OUTSIDE) -> None:
        self.host, self.held = host, dict[int, Lease]()
        self.refusal: GatewayError | None = None

    async def look(self, leases: Sequence[Lease]) -> Seen:
        return Seen(self.host, tuple(each.port for each in leases if each.port not in self.held))

    async def map(self, port: int, external: int, lifetime: int) -> Lease:
        if self.refusal is not None:
            raise self.refusal
        self.held[port] = Lease(port, external, lifetime)
        return self.held[port]

    async def unmap(self, lease: Lease) -> None:
        del self.held[lease.port]


class Around:
    """The daemon's other parts, as far as they matter here."""

    def __init__(self) -> None:
        self.mapped_addresses: tuple[str, ...] = ()
        self.verdict = Verdict()
        self.seen_hosts: frozenset[str] = frozenset()
        self.moves = 0

    def own_addresses(self) -> tuple[str, ...]:
        return ("/ip4/192.168.1.2/tcp/4101", "/ip4/127.0.0.1/tcp/4101")

    def links(self) -> list[Any]:
        return [SimpleNamespace(addresses=("/ip4/198.51.100.2/tcp/4101",))]

    def moved(self) -> None:
        self.moves += 1


@asynccontextmanager
async def mapping(around: Any, folder: Path, found: Callable[[], Router]) -> AsyncIterator[PortMapping]:
    async def find(home: Home) -> Router:
        return found()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(port_mapping, "find", find)
        patch.setattr(port_mapping, "home", lambda listen_host: HOME)
        patch.setattr(port_mapping, "GLANCE", 0.01)
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


def codes(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.code for record in caplog.records if hasattr(record, "code")]


def test_a_mapped_address_is_named_to_others_and_removed_at_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        around, router = Around(), Router()
        async with mapping(around, tmp_path, lambda: router) as us:
            await until(lambda: around.mapped_addresses == (PLACE,))
            assert us.outside(4101) == (OUTSIDE, 4101)
            assert us.outside(4102) is None
            expected = {"protocol": "upnp", "external": f"{OUTSIDE}:4101", "error": None, "behind_another_nat": None}
            assert us.as_json() == expected
            around.verdict = Verdict((PLACE,), "public")
            assert us.as_json() == expected | {"behind_another_nat": False}
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
            await until(lambda: us.outside(4101) is not None and bool(us.as_json()["behind_another_nat"]))
            await until(lambda: "behind-another-nat" in codes(caplog))
            assert around.mapped_addresses == ()
            assert host in us.as_json()["error"]

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
            await until(lambda: us.as_json()["error"] == "the router does not let us (UPnP)")
            await until(lambda: bool(codes(caplog)))
            assert (us.as_json()["protocol"], us.as_json()["external"]) == ("upnp", None)

    with caplog.at_level(logging.INFO):
        asyncio.run(main())
    assert codes(caplog) == ["port-mapping-refused"]


def test_where_no_router_answers_nobody_is_warned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def nobody() -> Router:
        raise GatewayError("nobody answers")

    async def main() -> None:
        async with mapping(Around(), tmp_path, nobody) as us:
            await until(lambda: us.as_json()["error"] == "nobody answers" and bool(codes(caplog)))
            assert us.as_json()["protocol"] is None

    with caplog.at_level(logging.INFO):
        asyncio.run(main())
    assert codes(caplog) == ["port-mapping-none"]
    assert all(record.levelno < logging.WARNING for record in caplog.records)


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
