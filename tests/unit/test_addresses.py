"""Host names in addresses are looked up as the system does it."""

from __future__ import annotations

import socket

import pytest

from shoal.protocol.addresses import resolve
from shoal.protocol.errors import TransportError


@pytest.mark.asyncio
@pytest.mark.parametrize("address", ["/ip4/192.0.2.7/tcp/4101", "/ip6/::1/tcp/4101", "", "nonsense"])
async def test_what_has_no_name_stays_as_it_is(address: str) -> None:
    assert await resolve(address) == (address,)


@pytest.mark.asyncio
async def test_each_address_of_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(host: str, port: object, family: int = 0, *_: object) -> list[tuple[object, ...]]:
        assert (host, family) == ("bootstrap", socket.AF_UNSPEC)
        found = [(socket.AF_INET, "192.0.2.7"), (socket.AF_INET, "192.0.2.7"), (socket.AF_INET6, "2001:db8::7")]
        return [(kind, socket.SOCK_STREAM, 6, "", (where, 0)) for kind, where in found]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    found = await resolve("/dns/bootstrap/tcp/4101")
    assert found == ("/ip4/192.0.2.7/tcp/4101", "/ip6/2001:db8::7/tcp/4101")


@pytest.mark.asyncio
async def test_the_name_of_this_machine() -> None:
    assert await resolve("/dns4/localhost/tcp/4101") == ("/ip4/127.0.0.1/tcp/4101",)


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["nobody.invalid", "a" * 64, ""])
async def test_an_unknown_name_is_the_networks_fault(name: str) -> None:
    with pytest.raises(TransportError, match="cannot be looked up"):
        await resolve(f"/dns4/{name}/tcp/4101")
