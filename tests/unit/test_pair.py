"""Pair exchange: whole or nothing, once, and no lies."""

from __future__ import annotations

import pytest

from shoal.protocol.effects import Send, Tell
from shoal.protocol.errors import PayloadError
from shoal.protocol.ids import PeerId
from shoal.protocol.messages.rounds import Contribution, Want
from shoal.protocol.pair import EPOCH, Exchanged, PairExchange, Pairing, PartnerLost
from shoal.protocol.silence import STRIKES
from shoal.protocol.wire import Payload
from tests.unit.rounds_kit import A, B, C, refused

PAIRING = Pairing(B, 5, 0, 1, 3)


def _check(chunk: int, payload: Payload) -> None:
    if len(payload) != 2:
        raise PayloadError(f"{len(payload)} bytes")


def _core(partner: PeerId = B) -> PairExchange:
    pairing = Pairing(partner, 5, 0, 1, 3)
    return PairExchange(0.0, pairing, lambda chunk: b"%02d" % chunk, _check, patience=1.0)


def _chunk(index: int, payload: bytes = b"ok", number: int = 1) -> Contribution:
    return Contribution(5, 0, number, index, EPOCH, payload)


def test_each_gets_the_others_bytes() -> None:
    one, other = _core(B), _core(A)
    told = []
    for sender, sending, receiver in ((A, one, other), (B, other, one)):
        for effect in sending.start():
            assert isinstance(effect, Send)
            told += receiver.receive(0.1, sender, effect.message)  # type: ignore[arg-type]
    assert told == [Tell(Exchanged(A, (b"00", b"01", b"02"))), Tell(Exchanged(B, (b"00", b"01", b"02")))]


def test_it_counts_once() -> None:
    core = _core()
    told = [effect for index in (0, 1, 0, 2, 2, 1, 0) for effect in core.receive(0.1, B, _chunk(index))]
    assert told == [Tell(Exchanged(B, (b"ok",) * 3))]
    assert core.lose() == []


def test_a_lost_partner_is_told_of_and_its_bytes_dropped() -> None:
    core = _core()
    core.receive(0.1, B, _chunk(0))
    assert core.lose() == [Tell(PartnerLost(B))]
    assert [effect for index in range(3) for effect in core.receive(0.2, B, _chunk(index))] == []


def test_what_is_missing_is_asked_for_and_a_silent_partner_given_up() -> None:
    core = _core()
    core.receive(0.1, B, _chunk(1))
    assert core.tick(0.5) == []
    assert core.tick(1.2) == [Send(B, Want(5, 0, 1, (0, 2), ()))]
    effects = [effect for turn in range(100) for effect in core.tick(2.0 + turn)]
    assert len(effects) == STRIKES
    assert effects[-1] == Tell(PartnerLost(B))


def test_requests_are_answered_also_when_we_are_done() -> None:
    core = _core()
    for index in range(3):
        core.receive(0.1, B, _chunk(index))
    assert core.receive(0.2, B, Want(5, 0, 1, (1, 1), ())) == [Send(B, _chunk(1, b"01"))]


@pytest.mark.parametrize(
    ("sender", "message", "reason"),
    [
        (C, _chunk(0), "not our partner"),
        (B, _chunk(3), "names chunk 3 of 3"),
        (B, _chunk(0, b"too long"), "bad bytes of chunk 0"),
        (B, Want(5, 0, 1, (3,), ()), "more than our 3 chunks"),
    ],
)
def test_bad_messages_name_their_sender(sender: PeerId, message: Contribution | Want, reason: str) -> None:
    core = _core()
    with refused(core, sender, reason):
        core.receive(0.1, sender, message)


def test_another_exchange_is_none_of_its_business() -> None:
    assert _core().receive(0.1, B, _chunk(0, number=2)) == []
