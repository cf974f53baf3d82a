"""Mail for later is bounded, whoever sends what."""

from __future__ import annotations

import pytest

from shoal.protocol import mailbox
from shoal.protocol.allreduce import Blamed
from shoal.protocol.effects import Effect, Tell
from shoal.protocol.errors import RemoteError
from shoal.protocol.ids import PeerId
from shoal.protocol.mailbox import Mailbox, replayed
from shoal.protocol.messages.rounds import Contribution, Fetched, Retry
from shoal.protocol.wire import Message
from tests.unit.rounds_kit import A, B


def _chunk(number: int, size: int = 10) -> Contribution:
    return Contribution(5, 0, 1, number, (0, 0), bytes(size))


def test_mail_comes_back_once_and_in_order() -> None:
    box = Mailbox()
    letters = [Retry(5, 0, 1), Retry(5, 0, 2)]
    for letter in (_chunk(0), *letters, letters[0]):
        box.keep(A, letter)
    assert list(box.empty()) == [(A, letters[0]), (A, letters[1]), (A, _chunk(0))]
    assert list(box.empty()) == []


def test_the_newest_of_each_chunk_and_the_last_few_of_everything_else_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "MAX_BYTES", 25)
    monkeypatch.setattr(mailbox, "MAX_SENDERS", 2)
    box = Mailbox()
    for number in (0, 0, 1, 2, 3):
        box.keep(A, _chunk(number))
    box.keep(A, _chunk(0, size=5))
    for attempt in range(100):
        for peer in (A, B, PeerId("one too many")):
            box.keep(peer, Retry(5, 0, attempt))
    kept = list(box.empty())
    sizes = {message.chunk: len(message.payload) for _, message in kept if isinstance(message, Contribution)}
    assert sizes == {1: 10, 0: 5}
    assert [message.attempt for _, message in kept if isinstance(message, Retry)] == 2 * list(range(84, 100))
    assert {peer for peer, _ in kept} == {A, B}


def test_bytes_that_nobody_can_use_later_are_not_kept() -> None:
    box = Mailbox()
    box.keep(A, Fetched(5, 0, 0, b"", b"bytes"))
    assert list(box.empty()) == []


def test_whoever_sent_a_bad_letter_is_blamed_when_it_is_read() -> None:
    def receive(now: float, sender: PeerId, message: Message) -> list[Effect]:
        raise RemoteError("is not what it says", sender)

    assert replayed(receive, 0.0, B, _chunk(0)) == [Tell(Blamed(B, "is not what it says"))]
