"""Who has how many texts in an expert's slots, and what is forgotten when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.node.asking.tenants import GONE, IDLE, PRESSED, Tenants
from shoal.protocol.errors import RemoteError
from shoal.protocol.ids import PeerId
from shoal.protocol.messages.experts import Addition, Verdict
from tests.unit.asking.kit import ANNA, BOB, CARL


def adds(text: int, held: int = 0, count: int = 1) -> Addition:
    return Addition(text, held, (1,) * count, True)


def put(tenants: Tenants, now: float, peer: PeerId, text: int, held: int = 0, count: int = 1) -> int | Verdict:
    """All of an addition, as a booth does it."""
    addition = adds(text, held, count)
    tenants.check(peer, 1, [addition])
    place = tenants.admit(now, peer, 1, addition)
    if not isinstance(place, Verdict):
        tenants.added(now, peer, 1, addition)
    return place


def test_a_text_stays_in_its_slot_and_grows() -> None:
    tenants = Tenants(4, 4, 100)
    assert put(tenants, 0, ANNA, 7, 0, 5) == 0
    assert put(tenants, 0, BOB, 7) == 1
    assert put(tenants, 1, ANNA, 7, 5, 2) == 0
    assert put(tenants, 1, ANNA, 7, 5, 2) is Verdict.FORGOTTEN, "it holds 7 by now"
    assert put(tenants, 1, ANNA, 7, 7) is Verdict.FORGOTTEN, "and nothing after that"
    assert tenants.freed() == [0]
    assert put(tenants, 2, CARL, 9, 3) is Verdict.FORGOTTEN


def test_nobody_takes_all_slots() -> None:
    tenants = Tenants(4, 3, 100)
    assert [put(tenants, 0, ANNA, text) for text in range(4)] == [0, 1, 2, Verdict.FULL]
    assert put(tenants, 0, BOB, 1) == 3
    assert put(tenants, 0, BOB, 2) is Verdict.FULL
    tenants.end(ANNA, 1, [0])
    assert put(tenants, 0, BOB, 2) == 0


def test_who_finds_no_slot_gets_an_idle_one_of_who_has_most() -> None:
    tenants = Tenants(4, 3, 100)
    for text in range(3):
        put(tenants, float(text), ANNA, text)
    put(tenants, 0, BOB, 1)
    assert put(tenants, PRESSED - 1, CARL, 1) is Verdict.FULL
    assert put(tenants, PRESSED, CARL, 1) == 0
    assert put(tenants, PRESSED, ANNA, 0, 1) is Verdict.FORGOTTEN
    assert put(tenants, PRESSED, BOB, 1, 1) == 3


def test_who_was_killed_and_is_back_gets_the_slots_of_its_idle_texts() -> None:
    tenants = Tenants(4, 2, 100)
    for text in range(2):
        put(tenants, 0, ANNA, text)
    put(tenants, 0, BOB, 1)
    new = adds(1)
    assert tenants.admit(PRESSED - 1, ANNA, 2, new) is Verdict.FULL, "another process of the same peer"
    assert tenants.admit(PRESSED, ANNA, 2, new) in (0, 1)
    assert len(tenants) == 3, "it has no more than before"
    assert put(tenants, PRESSED, BOB, 1, 1) == 2, "and what others have is theirs"


def test_what_is_worked_on_is_never_taken_away() -> None:
    tenants = Tenants(1, 1, 100)
    addition = adds(1)
    assert tenants.admit(0, ANNA, 1, addition) == 0
    tenants.end(ANNA, 1, [1])
    tenants.lost(ANNA)
    tenants.tidy(1e6)
    assert tenants.admit(1e6, BOB, 1, adds(1)) is Verdict.FULL
    assert tenants.freed() == []
    with pytest.raises(RemoteError, match="while another"):
        tenants.check(ANNA, 1, [adds(1)])
    tenants.added(1e6, ANNA, 1, addition)
    assert (len(tenants), tenants.freed()) == (0, [0]), "it had ended meanwhile"


def test_idle_texts_are_forgotten_and_sooner_if_their_peer_is_gone() -> None:
    tenants = Tenants(3, 3, 100)
    put(tenants, 0, ANNA, 1)
    put(tenants, 0, BOB, 1)
    tenants.lost(ANNA)
    tenants.tidy(GONE - 1)
    assert len(tenants) == 2
    tenants.tidy(GONE)
    assert put(tenants, GONE, BOB, 1, 1) == 1
    assert put(tenants, GONE, ANNA, 1, 1) is Verdict.FORGOTTEN
    tenants.tidy(GONE + IDLE)
    assert len(tenants) == 0


def test_who_is_back_keeps_its_texts() -> None:
    tenants = Tenants(1, 1, 100)
    put(tenants, 0, ANNA, 1)
    tenants.lost(ANNA)
    put(tenants, 5, ANNA, 1, 1)
    tenants.tidy(5 + GONE)
    assert len(tenants) == 1


@pytest.mark.parametrize(
    ("additions", "words"),
    [
        ([Addition(1, 0, (), True)], "no tokens"),
        ([adds(1, 95, 6)], "over 100 tokens"),
        ([adds(1, 2**62)], "over 100 tokens"),
        ([adds(1), adds(1)], "while another"),
    ],
)
def test_what_no_honest_peer_asks(additions: list[Addition], words: str) -> None:
    with pytest.raises(RemoteError, match=words) as caught:
        Tenants(4, 4, 100).check(ANNA, 1, additions)
    assert caught.value.peer == ANNA


@given(
    st.lists(st.tuples(st.sampled_from([ANNA, BOB, CARL]), st.integers(0, 3), st.integers(0, 3), st.integers(0, 40)))
)
def test_no_slot_is_ever_given_twice(steps: list[tuple[PeerId, int, int, int]]) -> None:
    tenants, now = Tenants(3, 2, 100), 0.0
    holds: dict[int, tuple[PeerId, int]] = {}
    for peer, text, held, pause in steps:
        now += pause
        place = put(tenants, now, peer, text, held)
        for slot in tenants.freed():
            holds.pop(slot, None)
        if not isinstance(place, Verdict):
            assert holds.setdefault(place, (peer, text)) == (peer, text)
        if pause == 7:
            tenants.end(peer, 1, [text])
        tenants.tidy(now)
        for slot in tenants.freed():
            holds.pop(slot, None)
        assert len(holds) == len(tenants)
