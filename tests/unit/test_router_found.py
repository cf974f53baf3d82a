"""Which router is used: one that speaks NAT-PMP and has an outside, else one with UPnP, else any that answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from ipaddress import IPv4Network
from typing import Any

import pytest

from shoal.node.peers import port_mapping
from shoal.node.peers.gateway.router import GatewayError, HomeNetwork, PortLease, RouterStatus
from shoal.node.peers.port_mapping import find_router

HOME = HomeNetwork("192.168.1.2", IPv4Network("192.168.1.0/24"), "192.168.1.1")
SILENT = GatewayError("silence")


def found(
    monkeypatch: pytest.MonkeyPatch,
    pmp: RouterStatus | GatewayError,
    upnp: str | GatewayError,
    home: HomeNetwork = HOME,
) -> str | object:
    class NatPmp:
        def __init__(self, host: str) -> None:
            assert host == HOME.gateway

        async def look(self, leases: Sequence[PortLease]) -> RouterStatus:
            if isinstance(pmp, GatewayError):
                raise pmp
            return pmp

    async def find_upnp(home: HomeNetwork) -> Any:
        await asyncio.sleep(0)
        if isinstance(upnp, GatewayError):
            raise upnp
        return upnp

    monkeypatch.setattr(port_mapping, "NatPmpGateway", NatPmp)
    monkeypatch.setattr(port_mapping, "find_upnp", find_upnp)
    router = asyncio.run(find_router(home))
    return "nat-pmp" if isinstance(router, NatPmp) else router


@pytest.mark.parametrize(
    ("pmp", "upnp", "expected"),
    [
        (RouterStatus("7.7.7.8"), "upnp", "nat-pmp"),
        (RouterStatus("7.7.7.8"), SILENT, "nat-pmp"),
        (SILENT, "upnp", "upnp"),
        (RouterStatus(""), "upnp", "upnp"),  # it may know of another outside
        (RouterStatus(""), SILENT, "nat-pmp"),
    ],
)
def test_the_best_is_taken(
    monkeypatch: pytest.MonkeyPatch, pmp: RouterStatus | GatewayError, upnp: str | GatewayError, expected: str
) -> None:
    assert found(monkeypatch, pmp, upnp) == expected


def test_where_nobody_speaks_all_reasons_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GatewayError, match="no packet; no answer"):
        found(monkeypatch, GatewayError("no packet"), GatewayError("no answer"))


def test_where_the_way_out_is_not_known_there_is_still_upnp(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, RouterStatus("7.7.7.8"), "upnp", HomeNetwork(HOME.here, HOME.network, None)) == "upnp"


def test_a_search_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def find_upnp(home: HomeNetwork) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(port_mapping, "find_upnp", find_upnp)
    monkeypatch.setattr(port_mapping, "FIND_LIMIT", 0.01)
    with pytest.raises(GatewayError, match="within"):
        asyncio.run(find_router(HomeNetwork(HOME.here, HOME.network, None)))


def test_to_be_ended_while_the_search_takes_its_leave_is_to_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        is_leaving, may_leave = asyncio.Event(), asyncio.Event()

        async def find_upnp(home: HomeNetwork) -> Any:
            try:
                await asyncio.Event().wait()
            finally:
                is_leaving.set()
                await may_leave.wait()

        class NatPmp:
            def __init__(self, host: str) -> None:
                pass

            async def look(self, leases: Sequence[PortLease]) -> RouterStatus:
                await asyncio.sleep(0)
                return RouterStatus("7.7.7.8")

        monkeypatch.setattr(port_mapping, "NatPmpGateway", NatPmp)
        monkeypatch.setattr(port_mapping, "find_upnp", find_upnp)
        task = asyncio.create_task(find_router(HOME))
        await is_leaving.wait()
        task.cancel()
        may_leave.set()
        await asyncio.wait([task], timeout=10.0)
        assert task.cancelled()

    asyncio.run(main())
