"""NAT-PMP: its messages by RFC 6886, and the gateway with a router on loopback."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.node.peers.gateway import natpmp
from shoal.node.peers.gateway.natpmp import (
    AddressResponse,
    MappingResponse,
    NatPmpGateway,
    address_request,
    has_restarted,
    mapping_request,
    parse_address,
    parse_mapping,
)
from shoal.node.peers.gateway.router import Declined, GatewayError, PortLease, RouterStatus

HERE = "127.0.0.1"
LEASE = PortLease(4101, 4101, 3600)


def test_questions_are_those_of_the_rfc() -> None:
    assert address_request() == bytes.fromhex("0000")
    assert mapping_request(4101, 4103, 3600) == bytes.fromhex("00020000 1005 1007 00000e10")


def test_answers_of_a_real_router() -> None:
    assert parse_address(bytes.fromhex("00800000 00000001 07070708")) == AddressResponse(0, 1, "7.7.7.8")
    assert parse_mapping(bytes.fromhex("00820000 00000001 1005 1005 00000e10"), 4101) == MappingResponse(
        0, 1, 4101, 4101, 3600
    )


def test_refusals_are_answers_however_short() -> None:
    assert parse_address(bytes.fromhex("00800003 00000001")) == AddressResponse(3, 1, "0.0.0.0")
    assert parse_mapping(bytes.fromhex("00820002 00000007"), 4101) == MappingResponse(2, 7, 4101, 0, 0)


@pytest.mark.parametrize(
    "said",
    [
        "",
        "00800000 00000001",  # consent without an address
        "02800000 00000001 07070708",  # PCP's version
        "00000000 00000001 07070708",  # a question
        "00820000 00000001 1005 1005 00000e10",  # to another question
        "00800000 00000001 07070708" + "00" * 60,  # too long
    ],
)
def test_what_is_no_answer_is_none(said: str) -> None:
    assert parse_address(bytes.fromhex(said)) is None


def test_an_answer_about_another_port_is_none_of_ours() -> None:
    assert parse_mapping(bytes.fromhex("00820000 00000001 1006 1006 00000e10"), 4101) is None


@given(st.binary(max_size=80))
def test_any_bytes_are_an_answer_or_none(said: bytes) -> None:
    for answer in (parse_address(said), parse_mapping(said, 4101)):
        assert answer is None or 0 <= answer.code < 65_536


@pytest.mark.parametrize(
    ("before", "seconds", "epoch", "anew"),
    [
        (1000, 30.0, 1030, False),
        (1000, 30.0, 1025, False),  # a clock may be slow by an eighth, and two seconds
        (1000, 30.0, 1024, True),
        (1000, 30.0, 3, True),
        (0, 3600.0, 3600, False),
    ],
)
def test_a_count_that_is_behind_is_another_life(before: int, seconds: float, epoch: int, anew: bool) -> None:
    assert has_restarted(before, seconds, epoch) is anew


# -- the gateway --------------------------------------------------------------------------------------------


@pytest.fixture
def sock(monkeypatch: pytest.MonkeyPatch) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((HERE, 0))
    sock.settimeout(10.0)
    monkeypatch.setattr(natpmp, "PORT", sock.getsockname()[1])
    return sock


def serve(sock: socket.socket, *answers: Callable[[bytes], list[bytes]]) -> Thread:
    """Give one answer after the other, each to the next question."""

    def run() -> None:
        with sock:
            for answer in answers:
                question, source = sock.recvfrom(100)
                for each in answer(question):
                    sock.sendto(each, source)

    thread = Thread(target=run, daemon=True)
    thread.start()
    return thread


def is_at(epoch: int, code: int = 0) -> Callable[[bytes], list[bytes]]:
    return lambda question: [struct.pack("!BBHI4s", 0, 128, code, epoch, bytes((7, 7, 7, 8)))]


def grants(external: int, lifetime: int) -> Callable[[bytes], list[bytes]]:
    return lambda question: [
        struct.pack("!BBHI", 0, 130, 0, 1) + question[4:6] + struct.pack("!HI", external, lifetime)
    ]


def test_it_looks_and_knows_another_life_of_the_router(sock: socket.socket) -> None:
    serve(sock, is_at(1000), is_at(1001), is_at(5))

    async def main() -> None:
        router = NatPmpGateway(HERE)
        assert await router.look([LEASE]) == RouterStatus("7.7.7.8")
        assert await router.look([LEASE]) == RouterStatus("7.7.7.8")
        assert await router.look([LEASE]) == RouterStatus("7.7.7.8", lost=(4101,))

    asyncio.run(main())


def test_a_router_without_an_address_says_so_and_one_that_is_switched_off_declines(sock: socket.socket) -> None:
    serve(sock, is_at(1, natpmp.NO_ADDRESS), is_at(1, 2))

    async def main() -> None:
        assert await NatPmpGateway(HERE).look(()) == RouterStatus("")
        with pytest.raises(Declined, match="switched off"):
            await NatPmpGateway(HERE).look(())

    asyncio.run(main())


def test_what_is_granted_may_be_another_port_and_time(sock: socket.socket) -> None:
    serve(sock, grants(5000, 120))
    assert asyncio.run(NatPmpGateway(HERE).map(4101, 4101, 3600)) == PortLease(4101, 5000, 120)


def test_a_mapping_to_nowhere_is_none(sock: socket.socket) -> None:
    serve(sock, grants(0, 0))
    with pytest.raises(Declined):
        asyncio.run(NatPmpGateway(HERE).map(4101, 4101, 3600))


def test_nonsense_is_passed_over_and_what_is_lost_is_asked_again(sock: socket.socket) -> None:
    serve(sock, lambda question: [b"", b"nonsense", b"\0" * 200], is_at(1))
    assert asyncio.run(NatPmpGateway(HERE).look(())) == RouterStatus("7.7.7.8")


def test_where_nobody_listens_one_knows_at_once(sock: socket.socket) -> None:
    sock.close()
    with pytest.raises(GatewayError, match="does not speak"):
        asyncio.run(NatPmpGateway(HERE).look(()))
