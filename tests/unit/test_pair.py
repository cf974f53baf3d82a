"""The exchange of a pair: complete or nothing, once, and no lies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.protocol.averaging.outbox import Outbox
from shoal.protocol.base.effects import Effect, Send, Tell, Withdraw
from shoal.protocol.base.errors import PayloadError
from shoal.protocol.base.estimate import Estimate
from shoal.protocol.base.ids import PeerId
from shoal.protocol.base.wire import Message, Payload
from shoal.protocol.messages.replicas import Busy, Chunk, Took, Want
from shoal.protocol.replicas.pair import (
    PAIR_MESSAGES,
    Exchanged,
    PairExchange,
    Pairing,
    PartnerLost,
    key_of,
    usual_length,
)
from tests.unit.rounds_kit import A, B, C, refused

WHOLE = (b"ok",) * 3


def _check(chunk: int, payload: Payload) -> None:
    if len(payload) != 2:
        raise PayloadError(f"{len(payload)} bytes")


def _core(partner: PeerId = B, outbox: Outbox | None = None) -> PairExchange:
    pairing, pace = Pairing(partner, 5, 1, 3), Estimate(initial=1.0, floor=1.0, ceiling=1.0)
    return PairExchange(0.0, pairing, _check, outbox or Outbox(key_of), pace, usual_length())


def _chunk(index: int, payload: bytes = b"ok", number: int = 1) -> Chunk:
    return Chunk(5, number, index, payload)


def _with_all() -> PairExchange:
    core = _core()
    for index in range(3):
        core.receive(0.1, B, _chunk(index))
    return core


def _told(effects: list[Effect]) -> list[Effect]:
    return [effect for effect in effects if isinstance(effect, Tell)]


def _contributions(effects: list[Effect]) -> list[int]:
    messages = [effect.message for effect in effects if isinstance(effect, Send)]
    return [message.chunk for message in messages if isinstance(message, Chunk)]


def test_each_gets_the_others_bytes_and_knows_that_the_other_has_its_own() -> None:
    cores = {A: _core(B), B: _core(A)}
    mail = [(A, effect) for effect in cores[A].start(0.0)] + [(B, effect) for effect in cores[B].start(0.0)]
    told: list[tuple[PeerId, Effect]] = []

    def filled(send: Send) -> Message:
        message = send.message
        assert send.is_late is isinstance(message, Chunk)
        return replace(message, payload=b"%02d" % message.chunk) if isinstance(message, Chunk) else message

    while mail:
        sender, effect = mail.pop(0)
        if isinstance(effect, Tell):
            told.append((sender, effect))
            continue
        assert isinstance(effect, Send)
        message = filled(effect)
        assert isinstance(message, PAIR_MESSAGES)
        mail += [(effect.to, each) for each in cores[effect.to].receive(0.1, sender, message)]
    whole = (b"00", b"01", b"02")
    assert sorted(told, key=lambda each: each[0]) == [
        (A, Tell(Exchanged(5, B, whole, True))),
        (B, Tell(Exchanged(5, A, whole, True))),
    ]


def test_it_counts_once_and_only_when_the_partner_has_ours() -> None:
    core = _core()
    for index in (0, 1, 0, 2, 2):
        assert _told(core.receive(0.1, B, _chunk(index))) == []
    assert core.receive(0.2, B, Took(5, 1)) == [Tell(Exchanged(5, B, WHOLE, True))]
    assert core.receive(0.2, B, Took(5, 1)) == []
    assert _told(core.receive(0.2, B, _chunk(1))) == []
    assert core.lose() == []


def test_a_partner_that_has_ours_and_sends_the_last_chunk_late_counts_too() -> None:
    core = _core()
    core.receive(0.1, B, _chunk(0))
    assert core.receive(0.1, B, Took(5, 1)) == []
    core.receive(0.1, B, _chunk(1))
    assert core.receive(0.3, B, _chunk(2)) == [Send(B, Took(5, 1)), Tell(Exchanged(5, B, WHOLE, True))]


def test_a_lost_partner_is_told_of_and_its_bytes_dropped() -> None:
    core = _core()
    core.receive(0.1, B, _chunk(0))
    assert core.lose() == [Withdraw(0, 5), Tell(PartnerLost(B))]
    assert _told([effect for index in range(3) for effect in core.receive(0.2, B, _chunk(index))]) == []


def test_of_a_partner_that_is_lost_after_all_its_bytes_they_count_perhaps_on_one_side() -> None:
    assert _with_all().lose() == [Tell(Exchanged(5, B, WHOLE, False))]


def test_what_is_missing_is_asked_for_and_a_silent_partner_given_up() -> None:
    core = _core()
    core.receive(0.1, B, _chunk(1))
    assert core.tick(0.5) == []
    assert core.tick(1.2) == [Send(B, Want(5, 1, (0, 2)))]
    effects = [effect for turn in range(100) for effect in core.tick(2.0 + turn)]
    assert effects[-1] == Tell(PartnerLost(B))
    assert 2 <= len(effects) <= 6


def test_the_word_that_ours_is_there_is_asked_for_and_not_for_ever() -> None:
    core = _with_all()
    assert core.tick(1.2) == [Send(B, Want(5, 1, ()))]
    effects = [effect for turn in range(200) for effect in core.tick(2.0 + turn)]
    assert effects[-1] == Tell(Exchanged(5, B, WHOLE, False))


def test_a_partner_that_only_says_that_it_is_busy_is_not_waited_for_for_ever() -> None:
    for core in (_core(), _with_all()):
        told: list[Effect] = []
        for second in range(400):
            core.receive(second, B, Busy(5, 1, second, second, True, True))
            told += _told(core.tick(second))
        assert len(told) == 1


def test_requests_are_answered_also_when_we_are_done_and_not_with_what_is_on_its_way() -> None:
    outbox = Outbox(key_of)
    core = _core(outbox=outbox)
    sends = core.start(0.0)
    assert _contributions(core.receive(0.2, B, Want(5, 1, (1, 1)))) == [], "it waits in our queue"
    for send in sends:
        assert isinstance(send, Send)
        outbox.sent(0.3, B, send.message)
    assert _contributions(core.receive(9.0, B, Want(5, 1, (1, 1)))) == [1]
    assert core.receive(9.0, B, Want(5, 1, ()))[-1] == Send(B, Busy(5, 1, 3, 0, False, True))
    for index in range(3):
        core.receive(9.1, B, _chunk(index))
    assert core.receive(9.2, B, Want(5, 1, ())) == [Send(B, Took(5, 1))]


def test_nobody_can_make_us_send_for_ever() -> None:
    core = _core()
    sent = [chunk for turn in range(100) for chunk in _contributions(core.receive(turn, B, Want(5, 1, (0,))))]
    assert len(sent) <= 12


@pytest.mark.parametrize(
    ("sender", "message", "reason"),
    [
        (C, _chunk(0), "not our partner"),
        (B, _chunk(3), "names chunk 3 of 3"),
        (B, _chunk(0, b"too long"), "bad bytes of chunk 0"),
        (B, Want(5, 1, (3,)), "more than our 3 chunks"),
    ],
)
def test_bad_messages_name_their_sender(sender: PeerId, message: Chunk | Want, reason: str) -> None:
    core = _core()
    with refused(core, sender, reason):
        core.receive(0.1, sender, message)


def test_another_exchange_is_none_of_its_business() -> None:
    core = _core()
    assert core.receive(0.1, B, _chunk(0, number=2)) == []
    assert core.receive(0.1, B, Took(5, 2)) == []
