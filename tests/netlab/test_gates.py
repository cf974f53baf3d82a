"""Each place behaves as its name says, as plain sockets see it; the expectations are written by hand."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from tests.integration.nodes import until
from tests.netlab.gates import BLOCKED, KEEPS_PORTS, PUBLIC, Count, Gate
from tests.netlab.lab import Lab, network
from tests.netlab.places import PLACES, build, settle
from tests.netlab.probes import PATIENCE, SOON, Address, dial, does_come, hops_left, knock, listener, udp
from tests.netlab.segments import Host

PORT = 4101
TTL = 64


@dataclass(frozen=True)
class Nature:
    """How others see a machine."""

    keeps_port: bool
    one_port_for_all: bool
    strangers: str
    routers: int


NATURES = {
    "public": Nature(True, True, "in", 0),
    "blocked": Nature(True, True, "dropped", 0),
    "home-drop": Nature(True, True, "dropped", 1),
    "home-reject": Nature(True, True, "rejected", 1),
    "home-symmetric": Nature(False, False, "dropped", 1),
    "home-double": Nature(True, True, "dropped", 2),
}


def test_no_place_is_forgotten() -> None:
    assert set(NATURES) == set(PLACES)


@pytest.fixture(scope="module")
def town() -> Iterator[dict[str, Host]]:
    """A machine in each place, and two that they all can reach."""
    with network() as lab:
        yield {place: settle(lab.internet, place, place) for place in PLACES} | {
            label: lab.internet.host(label) for label in ("server", "other")
        }


@pytest.mark.parametrize("place", PLACES)
def test_what_udp_sees(town: dict[str, Host], place: str) -> None:
    server, a, other = town["server"], town[place], town["other"]
    with udp(a, PORT) as inside, udp(server, 5_000) as one, udp(other, 5_000) as two, udp(other) as stranger:
        seen: list[Address] = []
        for sock, host in ((one, server), (two, other)):
            inside.sendto(b"hello", (host.address, 5_000))
            sender, ttl = hops_left(sock)
            seen.append(sender)
            sock.sendto(b"welcome", sender)
            assert inside.recv(100) == b"welcome"
        (first, port), (second, another) = seen
        assert first == second == a.public
        stranger.connect((first, port))
        nature = Nature(port == PORT, port == another, fate(stranger, inside, a.edge), TTL - ttl)
    print(f"\n{place:<16}UDP  {nature}")
    assert nature == NATURES[place]


def fate(stranger: socket.socket, goal: socket.socket, gate: Gate) -> str:
    """What happens to a stranger's datagram."""
    refused = gate.count("refused")
    stranger.send(b"let me in")
    if not does_come(gate, refused, lambda wait: bool(select.select([goal, stranger], (), (), wait)[0])):
        return "dropped"
    if select.select([goal], (), (), 0)[0]:
        return "in"
    with pytest.raises(ConnectionRefusedError):
        stranger.recv(100)
    return "rejected"


@pytest.mark.parametrize("place", PLACES)
def test_what_tcp_sees(town: dict[str, Host], place: str) -> None:
    server, a, other = town["server"], town[place], town["other"]
    with listener(server, 5_000) as one, listener(other, 5_000) as two, listener(a, PORT):
        ports = []
        for door, host in ((one, server), (two, other)):
            with dial(a, (host.address, 5_000), PORT) as out:
                line, (address, port) = door.accept()
                with line:
                    line.sendall(b"welcome")
                    assert out.recv(100) == b"welcome"
            assert address == a.public
            ports.append(port)
        accepted, refused = a.edge.count("accepted"), a.edge.count("refused")
        strangers = knock(other, (a.public, PORT), a.edge)
    print(f"\n{place:<16}TCP  ports {ports}, strangers {strangers}")
    nature = NATURES[place]
    assert nature == replace(
        nature, keeps_port=ports[0] == PORT, one_port_for_all=ports[0] == ports[1], strangers=strangers
    )
    assert (a.edge.count("refused") == refused) == (strangers == "in")
    assert (a.edge.count("accepted") == accepted) == (strangers != "in")


def test_a_gate_counts_by_address_what_passes(lab: Lab) -> None:
    server, a, other = build(lab, "home-double+public").values()
    with udp(a, PORT) as inside, udp(server, 5_000) as outside:
        inside.sendto(b"hello", (server.address, 5_000))
        outside.sendto(b"welcome", outside.recvfrom(100)[1])
        assert inside.recv(100) == b"welcome"
    assert a.edge.sent_to(server.address) == Count(1, 20 + 8 + len(b"hello"))
    assert a.edge.received_from(server.address) == Count(1, 20 + 8 + len(b"welcome"))
    assert server.edge.received_from(a.public) == a.edge.sent_to(server.address)
    assert a.edge.sent_to(other.address) == a.edge.received_from(other.address) == Count()


def test_homes_number_their_machines_alike_and_private_addresses_lead_nowhere_else(lab: Lab) -> None:
    _, a, b = build(lab, "home-drop+home-drop").values()
    assert a.address == b.address != a.public != b.public
    with listener(b, PORT):
        with pytest.raises(ConnectionRefusedError):
            dial(a, (b.address, PORT))  # that is itself, and nobody listens there
        assert knock(a, (b.public, PORT), b.edge) == "dropped"


def test_a_port_that_was_opened_by_hand_lets_strangers_in(lab: Lab) -> None:
    server, a = build(lab, "home-drop").values()
    with listener(a, PORT):
        assert knock(server, (a.public, PORT), a.edge) == "dropped"
        a.edge.open(PORT, a.address)
        assert knock(server, (a.public, PORT), a.edge) == "in"
        assert knock(server, (a.public, PORT + 1), a.edge) == "dropped"
    assert a.edge.count("accepted").packets == 1


def test_a_mapping_that_nobody_uses_is_forgotten(lab: Lab) -> None:
    server = lab.internet.host("server")
    home = lab.internet.router("home", replace(KEEPS_PORTS, forgets=1))
    a = home.host("a")
    with udp(a, PORT) as inside, udp(server, 5_000) as outside:
        inside.sendto(b"hello", (server.address, 5_000))
        _, seen = outside.recvfrom(100)

        refused = home.gate.count("refused")
        assert not select.select([inside], (), (), 1.5)[0], "something came, and would keep the mapping alive"
        outside.sendto(b"still there?", seen)
        until(lambda: home.gate.count("refused") != refused, "the late packet to be refused", lambda: "it was not")
        inside.sendto(b"hello again", (server.address, 5_000))
        assert outside.recv(100) == b"hello again"


SERVER, BLOCKED_HOST = ("192.0.2.200", "2001:db8::1"), ("192.0.2.201", "2001:db8::2")


@pytest.mark.parametrize(("server", "blocked"), list(zip(SERVER, BLOCKED_HOST, strict=True)))
def test_a_firewall_lets_out_what_it_does_not_let_in(lab: Lab, server: str, blocked: str) -> None:
    hosts = [
        lab.internet.host(label, policy, None, *addresses)
        for label, policy, addresses in (("server", PUBLIC, SERVER), ("blocked", BLOCKED, BLOCKED_HOST))
    ]
    doors = [host.on(open_to_both) for host in hosts]
    hosts[1].on(lambda: socket.create_connection((server, PORT), timeout=PATIENCE)).close()
    doors[0].accept()[0].close()
    with pytest.raises(TimeoutError):
        hosts[0].on(lambda: socket.create_connection((blocked, PORT), timeout=SOON))
    for door in doors:
        door.close()


def open_to_both() -> socket.socket:
    return socket.create_server(("", PORT), family=socket.AF_INET6, dualstack_ipv6=True)
