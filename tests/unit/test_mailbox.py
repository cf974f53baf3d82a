"""Messages kept for later are bounded, whoever sends them, and voters are sure of their place."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from shoal.protocol.averaging import mailbox
from shoal.protocol.averaging.mailbox import OVERHEAD, Mailbox, replayed
from shoal.protocol.base.effects import Blamed, Effect, Tell
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import NO_DIGEST, PeerId
from shoal.protocol.base.wire import MEMORY_UNIT, Message
from shoal.protocol.messages.averaging import Call, Contribution, Give, Mean, Table
from shoal.protocol.messages.transfer import StateChunk
from tests.unit.rounds_kit import STRANGER, A, B, C, made

SIZE = MEMORY_UNIT  # bytes, for which there is room of just that size


def _chunk(number: int, size: int = SIZE, epoch: int = 0) -> Contribution:
    return Contribution(0, 5, number, epoch, 10, NO_DIGEST, bytes(size))


def _word(number: int) -> Give:
    return Give(0, 5, (number,), (), ())


def _table(size: int) -> Table:
    return Table(0, 5, (made(0, A, bytes(32)),) * size)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Mailbox:
    """A mailbox with room for four chunks of voters, and for two of strangers."""
    monkeypatch.setattr(mailbox, "VOTERS_BYTES", 4 * (SIZE + OVERHEAD))
    monkeypatch.setattr(mailbox, "STRANGERS_BYTES", 2 * (SIZE + OVERHEAD))
    return Mailbox([A, B])


def _chunks(kept: Iterable[tuple[PeerId, Message]], sender: PeerId) -> list[int]:
    return [message.chunk for peer, message in kept if peer == sender and isinstance(message, Contribution)]


def test_mail_comes_back_once_and_in_order() -> None:
    box = Mailbox([A])
    letters = [_word(1), _word(2)]
    box.keep(STRANGER, letters[1])
    for letter in (_chunk(0), *letters, letters[0]):
        box.keep(A, letter)
    assert list(box.empty([A])) == [(A, letters[0]), (A, letters[1]), (STRANGER, letters[1]), (A, _chunk(0))]
    assert list(box.empty([A])) == []


def test_the_newest_of_each_chunk_and_the_last_few_of_everything_else_are_kept() -> None:
    box = Mailbox([A])
    for number in (0, 1, 0):
        box.keep(A, _chunk(number, epoch=number + 1))
    box.keep(A, _chunk(0, size=5))
    for number in range(100):
        for peer in (A, STRANGER):
            box.keep(peer, _word(number))
    kept = list(box.empty([A]))
    sizes = {message.chunk: len(message.payload) for _, message in kept if isinstance(message, Contribution)}
    assert sizes == {1: SIZE, 0: 5}
    assert [message.contributions[0] for _, message in kept if isinstance(message, Give)] == 2 * list(range(84, 100))


def test_strangers_never_cost_a_voter_anything(small: Mailbox) -> None:
    for number in range(2):
        for peer in (A, B):
            small.keep(peer, _chunk(number))
    for number in range(100):
        small.keep(PeerId(f"stranger {number % 7}"), _chunk(number))
    kept = list(small.empty([]))
    assert _chunks(kept, A) == _chunks(kept, B) == [0, 1]
    assert sum(len(message.payload) for _, message in kept if isinstance(message, Contribution)) <= 6 * SIZE


def test_whoever_has_most_loses_its_latest(small: Mailbox) -> None:
    for number in range(9):
        small.keep(A, _chunk(number))
    for number in range(9):
        small.keep(B, _chunk(number))
    kept = list(small.empty([]))
    assert _chunks(kept, A) == _chunks(kept, B) == [0, 1]


def test_short_payloads_count_as_the_room_that_they_take(small: Mailbox) -> None:
    for number in range(9):
        small.keep(A, _chunk(number, size=1))
    assert _chunks(small.empty([]), A) == [0, 1, 2, 3]


def test_words_outlive_bytes(small: Mailbox) -> None:
    for number in range(9):
        small.keep(A, _chunk(number))
    small.keep(A, Call(0, 5))
    kept = list(small.empty([]))
    assert [type(message) for _, message in kept] == [Call, *[Contribution] * 3]


def test_words_count_by_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "STRANGERS_BYTES", 20_000)
    small = Mailbox([])
    for size in range(16):
        small.keep(STRANGER, _table(30 + size))
    assert 0 < len(list(small.empty([]))) < 8


def test_a_message_that_is_over_the_whole_budget_costs_only_itself(small: Mailbox) -> None:
    small.keep(A, _chunk(0))
    small.keep(B, _chunk(1, size=9 * SIZE))
    kept = list(small.empty([]))
    assert (_chunks(kept, A), _chunks(kept, B)) == ([0], [])


def test_strangers_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "MAX_STRANGERS", 2)
    box = Mailbox([A])
    for peer in (B, C, PeerId("one too many"), A):
        box.keep(peer, _word(1))
    assert [peer for peer, _ in box.empty([A])] == [A, B, C]


def test_means_of_a_round_are_taken_by_chunk_and_hash() -> None:
    box = Mailbox([A])
    hashes = [bytes([chunk]) * 32 for chunk in range(2)]
    this, other = ([Mean(0, round, chunk, made(chunk, A, hashes[chunk]), b"-") for chunk in (0, 1)] for round in (5, 6))
    for each in this:
        box.keep(A, each)
    for each in other:
        box.keep(STRANGER, each)
    assert box.take_means(5, {(0, this[0].made.hash), (1, this[0].made.hash)}) == [(A, this[0])]
    assert box.take_means(5, {(0, this[0].made.hash)}) == []
    assert box.take_means(6, {(0, this[0].made.hash)}) == [(STRANGER, other[0])]
    assert box.empty([A]) == [(A, this[1]), (STRANGER, other[1])]


def test_bytes_that_nobody_can_use_later_are_not_kept() -> None:
    box = Mailbox([A])
    box.keep(A, StateChunk(0, 5, 0, b"bytes"))
    assert list(box.empty([A])) == []


def test_whoever_sent_a_bad_letter_is_blamed_when_it_is_read() -> None:
    def receive(now: float, sender: PeerId, message: Message) -> list[Effect]:
        raise RemoteError("is not what it says", sender)

    assert replayed(receive, 0.0, B, _chunk(0)) == [Tell(Blamed(B, "is not what it says"))]
