"""Which peers have how many texts in an expert's slots, and when these are forgotten."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.node.inference.remote.answering.sharing import GONE, IDLE, PRESSED, SlotAccounts
from shoal.protocol.base.errors import RemoteError
from shoal.protocol.base.ids import PeerId
from shoal.protocol.messages.experts import Addition, Verdict
from tests.unit.asking.kit import ANNA, BOB, CARL


def adds(text: int, held: int = 0, count: int = 1) -> Addition:
    return Addition(text, held, (1,) * count, True)


def put(accounts: SlotAccounts, now: float, peer: PeerId, text: int, held: int = 0, count: int = 1) -> int | Verdict:
    """Account for a whole addition, as a server does it."""
    addition = adds(text, held, count)
    accounts.check(peer, 1, [addition])
    place = accounts.admit(now, peer, 1, addition)
    if not isinstance(place, Verdict):
        accounts.added(now, peer, 1, addition)
    return place


def test_a_text_stays_in_its_slot_and_grows() -> None:
    accounts = SlotAccounts(4, 4, 100)
    assert put(accounts, 0, ANNA, 7, 0, 5) == 0
    assert put(accounts, 0, BOB, 7) == 1
    assert put(accounts, 1, ANNA, 7, 5, 2) == 0
    assert put(accounts, 1, ANNA, 7, 5, 2) is Verdict.FORGOTTEN, "it holds 7 by now"
    assert put(accounts, 1, ANNA, 7, 7) is Verdict.FORGOTTEN, "and nothing after that"
    assert accounts.freed() == [0]
    assert put(accounts, 2, CARL, 9, 3) is Verdict.FORGOTTEN


def test_nobody_takes_all_slots() -> None:
    accounts = SlotAccounts(4, 3, 100)
    assert [put(accounts, 0, ANNA, text) for text in range(4)] == [0, 1, 2, Verdict.FULL]
    assert put(accounts, 0, BOB, 1) == 3
    assert put(accounts, 0, BOB, 2) is Verdict.FULL
    accounts.end(ANNA, 1, [0])
    assert put(accounts, 0, BOB, 2) == 0


def test_who_finds_no_slot_gets_an_idle_one_of_who_has_most() -> None:
    accounts = SlotAccounts(4, 3, 100)
    for text in range(3):
        put(accounts, float(text), ANNA, text)
    put(accounts, 0, BOB, 1)
    assert put(accounts, PRESSED - 1, CARL, 1) is Verdict.FULL
    assert put(accounts, PRESSED, CARL, 1) == 0
    assert put(accounts, PRESSED, ANNA, 0, 1) is Verdict.FORGOTTEN
    assert put(accounts, PRESSED, BOB, 1, 1) == 3


def test_who_was_killed_and_is_back_gets_the_slots_of_its_idle_texts() -> None:
    accounts = SlotAccounts(4, 2, 100)
    for text in range(2):
        put(accounts, 0, ANNA, text)
    put(accounts, 0, BOB, 1)
    new = adds(1)
    assert accounts.admit(PRESSED - 1, ANNA, 2, new) is Verdict.FULL, "another process of the same peer"
    assert accounts.admit(PRESSED, ANNA, 2, new) in (0, 1)
    assert len(accounts) == 3, "it has no more than before"
    assert put(accounts, PRESSED, BOB, 1, 1) == 2, "and what others have is theirs"


def test_what_is_worked_on_is_never_taken_away() -> None:
    accounts = SlotAccounts(1, 1, 100)
    addition = adds(1)
    assert accounts.admit(0, ANNA, 1, addition) == 0
    accounts.end(ANNA, 1, [1])
    accounts.lost(ANNA)
    accounts.tidy(1e6)
    assert accounts.admit(1e6, BOB, 1, adds(1)) is Verdict.FULL
    assert accounts.freed() == []
    with pytest.raises(RemoteError, match="while another"):
        accounts.check(ANNA, 1, [adds(1)])
    accounts.added(1e6, ANNA, 1, addition)
    assert (len(accounts), accounts.freed()) == (0, [0]), "it had ended meanwhile"


def test_idle_texts_are_forgotten_and_sooner_if_their_peer_is_gone() -> None:
    accounts = SlotAccounts(3, 3, 100)
    put(accounts, 0, ANNA, 1)
    put(accounts, 0, BOB, 1)
    accounts.lost(ANNA)
    accounts.tidy(GONE - 1)
    assert len(accounts) == 2
    accounts.tidy(GONE)
    assert put(accounts, GONE, BOB, 1, 1) == 1
    assert put(accounts, GONE, ANNA, 1, 1) is Verdict.FORGOTTEN
    accounts.tidy(GONE + IDLE)
    assert len(accounts) == 0


def test_who_is_back_keeps_its_texts() -> None:
    accounts = SlotAccounts(1, 1, 100)
    put(accounts, 0, ANNA, 1)
    accounts.lost(ANNA)
    put(accounts, 5, ANNA, 1, 1)
    accounts.tidy(5 + GONE)
    assert len(accounts) == 1


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
        SlotAccounts(4, 4, 100).check(ANNA, 1, additions)
    assert caught.value.peer == ANNA


@given(
    st.lists(st.tuples(st.sampled_from([ANNA, BOB, CARL]), st.integers(0, 3), st.integers(0, 3), st.integers(0, 40)))
)
def test_no_slot_is_ever_given_twice(steps: list[tuple[PeerId, int, int, int]]) -> None:
    accounts, now = SlotAccounts(3, 2, 100), 0.0
    holds: dict[int, tuple[PeerId, int]] = {}
    for peer, text, held, pause in steps:
        now += pause
        place = put(accounts, now, peer, text, held)
        for slot in accounts.freed():
            holds.pop(slot, None)
        if not isinstance(place, Verdict):
            assert holds.setdefault(place, (peer, text)) == (peer, text)
        if pause == 7:
            accounts.end(peer, 1, [text])
        accounts.tidy(now)
        for slot in accounts.freed():
            holds.pop(slot, None)
        assert len(holds) == len(accounts)
