"""What a result names its means by."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from shoal.protocol.averaging.shelf import KEPT_ROUNDS, Decision, Shelf, table_digest
from shoal.protocol.base.ids import NO_DIGEST, Digest, PeerId
from shoal.protocol.messages.averaging import Made, Mean
from shoal.protocol.messages.log import Result

MADE = Made(Digest(b"\x01" * 32), b"\x03", 0, PeerId("A"), 1, b"said")


def test_the_same_means_have_the_same_name_whoever_made_them_in_whichever_run() -> None:
    """So histories are alike where the bits are: `--seed 7` and a run that goes on from a checkpoint promise that."""
    other = replace(MADE, epoch=1, owner=PeerId("B"), life=7, signature=b"said by another")
    assert table_digest([MADE, MADE]) == table_digest([MADE, other])


def test_other_bits_and_other_contributors_have_another_name() -> None:
    others = [[], [MADE, MADE], [replace(MADE, hash=Digest(b"\x02" * 32))], [replace(MADE, mask=b"\x01")]]
    assert len({table_digest(each) for each in [[MADE], *others]}) == 1 + len(others)


@dataclass
class _Leases:
    """Somebody downloads the state after this round, and has room for so many bytes of results."""

    version: int | None
    room: int

    def oldest_lease(self) -> int | None:
        return self.version

    def room_for_results(self) -> int:
        return self.room


def _decision(round: int, size: int = 10) -> Decision:
    result = Result(0, round, round - 1, NO_DIGEST, NO_DIGEST, NO_DIGEST, (), ())
    return Decision(round, result, (), (MADE,), (bytes(size),))


def _shelf(
    leases: _Leases | None,
    rounds: int,
    size: int = 10,
    sought: tuple[int, ...] = (),
    archive: _Archive | None = None,
) -> Shelf:
    """After so many rounds, each of `size` bytes."""
    shelf = Shelf()
    shelf.leases, shelf.archive = leases, archive
    for round in range(1, rounds + 1):
        shelf.decide(_decision(round, size))
        if round in sought:
            assert shelf.find(0, round, 0, MADE.hash) is not None
    return shelf


def _kept(leases: _Leases | None, rounds: int, sought: tuple[int, ...] = ()) -> list[int]:
    """Which of so many rounds are kept in memory at the end."""
    shelf = _shelf(leases, rounds, sought=sought)
    return [round for round in range(1, rounds + 1) if shelf.decision(round) is not None]


def test_a_result_is_kept_until_the_next_one_and_longer_if_somebody_has_fetched_of_it() -> None:
    assert _kept(None, 5) == [5]
    assert _kept(None, 5, sought=(4,)) == [4, 5]
    assert _kept(None, 4 + KEPT_ROUNDS, sought=(4,)) == [4 + KEPT_ROUNDS]


class _Archive:
    """The means since this round are on our disk."""

    def __init__(self, since: int) -> None:
        self.since = since

    def holds(self, round: int) -> bool:
        return round >= self.since


def test_of_earlier_rounds_it_is_known_what_is_on_the_disk() -> None:
    assert _shelf(None, 5).find(0, 3, 0, MADE.hash) is None
    shelf = _shelf(None, 5, archive=_Archive(3))
    assert shelf.find(0, 3, 0, MADE.hash) == Mean(0, 3, 0, MADE, b"")
    assert shelf.find(0, 3, 1, MADE.hash) is None
    assert shelf.find_table(4, NO_DIGEST) == (MADE,)
    assert shelf.find(0, 5, 0, MADE.hash) == Mean(0, 5, 0, MADE, bytes(10))
    assert shelf.served(2) is None, "it was forgotten there"
    shelf.undo(4)
    assert shelf.served(4) is None
    shelf.forget()
    assert shelf.served(3) is None


def test_what_is_known_of_the_disk_takes_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.protocol.averaging.shelf.MOST_WRITTEN", 10)
    archive = _Archive(0)
    shelf = _shelf(None, 50, archive=archive)
    assert [round for round in range(51) if shelf.served(round)] == list(range(40, 51))
    archive.since = 45
    shelf.decide(_decision(51))
    assert list(shelf._written) == list(range(45, 51)), "what is forgotten there is forgotten here"
    assert shelf._written_means == 6


def test_results_are_kept_for_who_downloads_the_state_before_them_as_long_as_there_is_room() -> None:
    """However many there are: those of fragments are small beside the state."""
    assert _kept(_Leases(2, 1000), 60) == list(range(3, 61))
    assert _kept(_Leases(2, 100), 60) == list(range(51, 61))
    assert _kept(_Leases(2, 5), 60) == [60]
    assert _kept(_Leases(None, 1000), 60) == [60]
