"""The shell of NAT-PMP against a router on the loopback, at a port of its own."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from threading import Thread

import pytest

from shoal.node.gateway import natpmp
from shoal.node.gateway.natpmp_gateway import NatPmpGateway
from shoal.node.gateway.values import Declined, GatewayError, Lease, Seen

HERE = "127.0.0.1"
LEASE = Lease(4101, 4101, 3600)


@pytest.fixture
def sock(monkeypatch: pytest.MonkeyPatch) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((HERE, 0))
    sock.settimeout(10.0)
    monkeypatch.setattr(natpmp, "PORT", sock.getsockname()[1])
    return sock


def serve(sock: socket.socket, *answers: Callable[[bytes], list[bytes]]) -> Thread:
    """One answer after the other, each to the next question."""

    def run() -> None:
        with sock:
            for answer in answers:
                question, source = sock.recvfrom(100)
                for each in answer(question):
                    sock.sendto(each, source)

    thread = Thread(target=run, daemon=True)
    thread.start()
    return thread


def where(epoch: int, code: int = 0) -> Callable[[bytes], list[bytes]]:
    return lambda question: [struct.pack("!BBHI4s", 0, 128, code, epoch, bytes((7, 7, 7, 8)))]


def grants(external: int, lifetime: int) -> Callable[[bytes], list[bytes]]:
    return lambda question: [
        struct.pack("!BBHI", 0, 130, 0, 1) + question[4:6] + struct.pack("!HI", external, lifetime)
    ]


def test_it_looks_and_knows_another_life_of_the_router(sock: socket.socket) -> None:
    serve(sock, where(1000), where(1001), where(5))

    async def main() -> None:
        router = NatPmpGateway(HERE)
        assert await router.look([LEASE]) == Seen("7.7.7.8")
        assert await router.look([LEASE]) == Seen("7.7.7.8")
        assert await router.look([LEASE]) == Seen("7.7.7.8", lost=(4101,))

    asyncio.run(main())


def test_a_router_without_an_address_says_so_and_one_that_is_switched_off_declines(sock: socket.socket) -> None:
    serve(sock, where(1, natpmp.NO_ADDRESS), where(1, 2))

    async def main() -> None:
        assert await NatPmpGateway(HERE).look(()) == Seen("")
        with pytest.raises(Declined, match="switched off"):
            await NatPmpGateway(HERE).look(())

    asyncio.run(main())


def test_what_is_granted_may_be_another_port_and_time(sock: socket.socket) -> None:
    serve(sock, grants(5000, 120))
    assert asyncio.run(NatPmpGateway(HERE).map(4101, 4101, 3600)) == Lease(4101, 5000, 120)


def test_a_mapping_to_nowhere_is_none(sock: socket.socket) -> None:
    serve(sock, grants(0, 0))
    with pytest.raises(Declined):
        asyncio.run(NatPmpGateway(HERE).map(4101, 4101, 3600))


def test_nonsense_is_passed_over_and_what_is_lost_is_asked_again(sock: socket.socket) -> None:
    serve(sock, lambda question: [b"", b"nonsense", b"\0" * 200], where(1))
    assert asyncio.run(NatPmpGateway(HERE).look(())) == Seen("7.7.7.8")


def test_where_nobody_listens_one_knows_at_once(sock: socket.socket) -> None:
    sock.close()
    with pytest.raises(GatewayError, match="does not speak"):
        asyncio.run(NatPmpGateway(HERE).look(()))
