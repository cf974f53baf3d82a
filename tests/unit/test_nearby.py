"""mDNS is a convenience: when it is on, what it passes on, and that no failure of it ends the node."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from ipaddress import ip_interface
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import zeroconf.asyncio
from zeroconf import NonUniqueNameException, ServiceStateChange

from shoal.node.base.options import NodeSettings
from shoal.node.peers import nearby
from shoal.node.peers.nearby import MAX_HOSTS, SERVICE, Nearby, may_be_near, multicast_hosts, text_record
from shoal.protocol.base.ids import PeerId
from shoal.protocol.net.system.identity import Identity
from shoal.protocol.net.system.interfaces import InterfaceKind, NetworkInterface

ME, ANNA = Identity.generate().peer, Identity.generate().peer
HERE, THERE = "/ip4/10.0.0.7/tcp/4101", "/ip4/10.0.0.9/tcp/4101"


@pytest.mark.parametrize(
    ("host", "mdns", "near"),
    [
        ("0.0.0.0", True, True),
        ("::", True, True),
        ("10.0.0.7", True, True),
        ("0.0.0.0", False, False),
        ("127.0.0.1", True, False),
        ("127.8.8.8", True, False),
        ("::1", True, False),
    ],
)
def test_it_is_on_where_somebody_could_reach_us(tmp_path: Path, host: str, mdns: bool, near: bool) -> None:
    assert may_be_near(NodeSettings(tmp_path, listen_host=host, mdns=mdns)) is near


class Air:
    """In the place of zeroconf: a network on which one service has been announced."""

    def __init__(self, said: dict[str, str]) -> None:
        self.said = {key.encode(): value.encode() for key, value in said.items()}
        self.at_hand = True  # whether the whole announcement is known, or has to be asked for
        self.registered: list[Any] = []
        self.closed = 0
        self.change: Callable[..., None] = lambda *_: None
        self.zeroconf = self

    # an AsyncZeroconf

    async def async_register_service(self, info: Any) -> None:
        self.registered.append(info)

    async def async_close(self) -> None:
        self.closed += 1

    # an AsyncServiceInfo

    def load_from_cache(self, zeroconf: Air) -> bool:
        return self.at_hand

    async def async_request(self, zeroconf: Air, limit: float) -> bool:
        return True

    @property
    def properties(self) -> dict[bytes, bytes]:
        return self.said

    def announce(self, name: str, change: ServiceStateChange = ServiceStateChange.Added) -> None:
        self.change(zeroconf=self, service_type=SERVICE, name=f"{name}.{SERVICE}", state_change=change)


def attach(monkeypatch: pytest.MonkeyPatch, *hosts: str) -> None:
    """This machine has these addresses, each on an interface."""
    found = [NetworkInterface(f"eth{host}", (ip_interface(f"{host}/24"),)) for host in hosts]
    monkeypatch.setattr(nearby, "interfaces", lambda: found)
    monkeypatch.setattr(nearby, "way_out", lambda: hosts[0] if hosts else "")


@pytest.fixture
def air(monkeypatch: pytest.MonkeyPatch) -> Air:
    air = Air(text_record(ANNA, [THERE]))
    monkeypatch.setattr(nearby, "interface_addresses", lambda: [ip_interface("10.0.0.7/24")])
    attach(monkeypatch, "10.0.0.7")
    monkeypatch.setattr(nearby, "LOOK", 0.001)
    monkeypatch.setattr(nearby, "RETRY", 0.001)

    def browser(zeroconf: object, service: str, handlers: list[Callable[..., None]]) -> SimpleNamespace:
        air.change = handlers[0]

        async def cancel() -> None:
            air.change = lambda *_: None

        return SimpleNamespace(async_cancel=cancel)

    def info(service: str, name: str, **fields: Any) -> Any:
        return SimpleNamespace(name=name, **fields) if fields else air

    monkeypatch.setattr(zeroconf.asyncio, "AsyncZeroconf", lambda interfaces: air)
    monkeypatch.setattr(zeroconf.asyncio, "AsyncServiceBrowser", browser)
    monkeypatch.setattr(zeroconf.asyncio, "AsyncServiceInfo", info)
    return air


class Ear:
    """Keeps what is passed on."""

    def __init__(self) -> None:
        self.found: list[tuple[PeerId, tuple[str, ...]]] = []
        self.gone: list[PeerId] = []
        self.addresses: tuple[str, ...] = (f"{HERE}/p2p/{ME}", f"/ip4/127.0.0.1/tcp/4101/p2p/{ME}")
        self.nearby = Nearby(
            ME, lambda: self.addresses, lambda peer, addresses: self.found.append((peer, addresses)), self.gone.append
        )


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.mark.asyncio
@pytest.mark.parametrize("at_hand", [True, False])
async def test_who_is_heard_is_passed_on(air: Air, at_hand: bool) -> None:
    ear, air.at_hand = Ear(), at_hand
    task = asyncio.create_task(ear.nearby.run())
    await until(lambda: air.registered)
    (info,) = air.registered
    assert info.name == f"{ME}.{SERVICE}"
    assert (info.port, info.parsed_addresses) == (4101, ["10.0.0.7"])
    assert info.properties == text_record(ME, [HERE])
    air.announce(ME)  # an echo
    air.announce(ANNA)
    await until(lambda: ear.found)
    assert ear.found == [(ANNA, (THERE,))]
    air.announce(ANNA, ServiceStateChange.Removed)
    assert ear.gone == [ANNA]
    task.cancel()
    await asyncio.wait([task])
    assert air.closed == 1


@pytest.mark.asyncio
async def test_with_new_addresses_it_begins_anew(air: Air, monkeypatch: pytest.MonkeyPatch) -> None:
    ear = Ear()
    task = asyncio.create_task(ear.nearby.run())
    await until(lambda: len(air.registered) == 1)
    attach(monkeypatch)
    await until(lambda: air.closed == 1)
    for _ in range(10):
        await asyncio.sleep(0.001)
    assert len(air.registered) == 1  # there is no network to speak to
    attach(monkeypatch, "10.0.0.8")
    ear.addresses = (f"/ip4/10.0.0.8/tcp/4101/p2p/{ME}",)
    await until(lambda: len(air.registered) == 2)
    assert air.registered[1].parsed_addresses == ["10.0.0.8"]
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.asyncio
async def test_where_the_system_does_not_list_its_networks_it_is_spoken_on_the_way_out(
    air: Air, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """zeroconf finds no host's interface then, either, and is told to speak where the system would."""
    caplog.set_level(logging.INFO)
    asked: list[object] = []

    def spoken(interfaces: object) -> Air:
        asked.append(interfaces)
        return air

    monkeypatch.setattr(nearby, "interfaces", list)
    monkeypatch.setattr(zeroconf.asyncio, "AsyncZeroconf", spoken)
    task = asyncio.create_task(Ear().nearby.run())
    await until(lambda: air.registered)
    task.cancel()
    await asyncio.wait([task])
    assert asked == [zeroconf.InterfaceChoice.Default]
    assert air.registered[0].parsed_addresses == ["10.0.0.7"]
    assert sum("does not list its networks" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.asyncio
async def test_what_goes_wrong_is_one_warning(
    air: Air, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries = 0

    def no_multicast(interfaces: list[str]) -> Air:
        nonlocal tries
        tries += 1
        raise OSError(98, "Address already in use")

    monkeypatch.setattr(zeroconf.asyncio, "AsyncZeroconf", no_multicast)
    task = asyncio.create_task(Ear().nearby.run())
    await until(lambda: tries > 3)
    assert not task.done()
    task.cancel()
    await asyncio.wait([task])
    (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "Address already in use" in warning.getMessage()
    assert cast(Any, warning).code == "mdns-unavailable"


@pytest.mark.asyncio
async def test_a_copy_of_our_key_is_called_that(
    air: Air, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(info: Any) -> None:
        raise NonUniqueNameException

    monkeypatch.setattr(air, "async_register_service", refuse)
    task = asyncio.create_task(Ear().nearby.run())
    await until(lambda: air.closed > 1)
    task.cancel()
    await asyncio.wait([task])
    assert caplog.text.count("another node there has a copy of this node's key") == 1


@pytest.mark.asyncio
async def test_only_so_many_are_asked_at_once(air: Air, monkeypatch: pytest.MonkeyPatch) -> None:
    air.at_hand, asked = False, 0

    async def request(zeroconf: object, limit: float) -> bool:
        nonlocal asked
        asked += 1
        await asyncio.Event().wait()
        return True

    monkeypatch.setattr(air, "async_request", request)
    task = asyncio.create_task(Ear().nearby.run())
    await until(lambda: air.registered)
    for number in range(3 * nearby.MAX_QUERIES):
        air.announce(f"somebody-{number}")
    await until(lambda: asked)
    task.cancel()
    await asyncio.wait([task])
    assert asked == nearby.MAX_QUERIES
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_it_is_spoken_wherever_others_may_hear_it_networks_first() -> None:
    bridges = [
        NetworkInterface(f"br{i}", (ip_interface(f"172.{i + 16}.0.1/16"),), InterfaceKind.NOWHERE) for i in range(30)
    ]
    deaf = NetworkInterface("wg0", (ip_interface("10.8.0.2/24"),), InterfaceKind.TUNNEL, multicast=False)
    inside = NetworkInterface("docker0", (ip_interface("172.60.0.1/16"),), InterfaceKind.INSIDE)
    network = NetworkInterface(
        "eth0", tuple(map(ip_interface, ("192.168.1.5/24", "192.168.1.6/24", "fd00::5/64", "fd00::6/64")))
    )
    assert multicast_hosts([*bridges, deaf, inside, network]) == (["192.168.1.5", "fd00::5", "172.60.0.1"], [])
    many = [NetworkInterface(f"eth{i}", (ip_interface(f"10.{i}.0.1/16"),)) for i in range(MAX_HOSTS + 2)]
    heard, unheard = multicast_hosts([inside, *many])
    assert heard == [f"10.{i}.0.1" for i in range(MAX_HOSTS)]
    assert unheard == ["10.16.0.1", "10.17.0.1", "172.60.0.1"], "what is left out is said"
