"""The means of the last rounds on disk: what is whole is there after a crash, and room is used again."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from shoal.node.run import means_store
from shoal.node.run.means_store import FULL, MeansStore
from shoal.protocol.base.ids import PeerId, result_hash
from shoal.protocol.messages.averaging import Made, Mean, Table

A = PeerId("A")


def mean(round: int, chunk: int = 0, size: int = 100) -> Mean:
    payload = bytes([round, chunk]) * size
    return Mean(0, round, chunk, Made(result_hash(b"\x01", payload), b"\x01", 0, A, 1, b"said"), payload)


def table(round: int) -> Table:
    return Table(0, round, (mean(round).made, mean(round, 1).made))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MeansStore:
    """One with a slot for each round."""
    monkeypatch.setattr(means_store, "FULL", 1)
    return reopened(tmp_path)


def reopened(folder: Path) -> MeansStore:
    store = MeansStore(folder / "means")
    store.open()
    return store


def found(store: MeansStore) -> tuple[Mean | Table, ...]:
    """All that is there, of every round."""
    return tuple(record for round in range(10) for record in store.read(round))


def opened(folder: Path) -> tuple[Mean | Table, ...]:
    """What the next process finds."""
    return found(reopened(folder))


def slots(folder: Path) -> list[Path]:
    return sorted((folder / "means").iterdir())


def test_what_was_written_is_there_after_reopening_and_writing_goes_on(store: MeansStore, tmp_path: Path) -> None:
    for record in (mean(1), mean(1, 1), table(1)):
        store.write(record)
    assert store.read(1) == [mean(1), mean(1, 1), table(1)]
    again = reopened(tmp_path)
    assert found(again) == (mean(1), mean(1, 1), table(1))
    again.write(table(1))
    again.write(mean(2))
    assert found(again) == (mean(1), mean(1, 1), table(1), table(1), mean(2))
    assert opened(tmp_path) == (mean(1), mean(1, 1), table(1), table(1), mean(2))
    assert again.size == sum(path.stat().st_size for path in slots(tmp_path))


def test_results_and_our_means_of_the_next_round_in_turns_take_a_slot_each(
    store: MeansStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else fresh room would be taken at each turn; small ones of several rounds take two in all."""
    for chunk in range(4):
        store.write(mean(2, chunk))
        store.write(mean(1, chunk))
    assert len(slots(tmp_path)) == 2
    expected = tuple(mean(round, chunk) for round in (1, 2) for chunk in range(4))
    assert found(store) == opened(tmp_path) == expected
    monkeypatch.setattr(means_store, "FULL", 1 << 20)
    for round in range(3, 9):
        store.write(mean(round, 0))
        store.write(mean(round - 1, 1))
    assert len(slots(tmp_path)) == 2
    assert [each.round for each in opened(tmp_path)] == sorted(each.round for each in found(store))


def test_a_mean_is_read_again_until_it_is_forgotten(store: MeansStore, tmp_path: Path) -> None:
    for record in (mean(1), mean(1, 1), table(1), mean(2), table(2)):
        store.write(record)
    for each in (mean(1), mean(1, 1), mean(2)):
        assert store.holds(each.round)
        assert store.payload(each.round, each.made.hash) == each.payload
    assert store.payload(1, mean(2).made.hash) is None
    assert store.payload(3, mean(3).made.hash) is None
    store.forget(2)
    assert not store.holds(1)
    assert store.payload(1, mean(1).made.hash) is None
    store.write(mean(3))
    assert store.payload(2, mean(2).made.hash) == mean(2).payload
    store.forget_all()
    assert not store.holds(3)
    assert store.payload(3, mean(3).made.hash) is None


def test_bytes_that_are_others_by_now_are_not_read(store: MeansStore, tmp_path: Path) -> None:
    """A disk may fail, and a slot be written over by another thread."""
    store.write(mean(1))
    (slot,) = slots(tmp_path)
    content = slot.read_bytes()
    slot.write_bytes(content[:-1] + b"x")
    assert store.payload(1, mean(1).made.hash) is None


def test_where_a_slot_is_missing_no_two_share_a_file(store: MeansStore, tmp_path: Path) -> None:
    for round in (1, 2, 3):
        store.write(mean(round))
    (tmp_path / "means" / "1").unlink()
    again = reopened(tmp_path)
    for round in (4, 5):
        again.write(mean(round))
    assert opened(tmp_path) == (mean(1), mean(3), mean(4), mean(5))


def test_small_rounds_share_a_slot(tmp_path: Path) -> None:
    store = reopened(tmp_path)
    for round in range(1, 4):
        store.write(mean(round))
    assert len(slots(tmp_path)) == 1
    store.write(mean(3, 1, size=FULL // 2))
    store.write(table(3))
    assert len(slots(tmp_path)) == 1, "a round is in one slot"
    store.write(mean(4))
    assert len(slots(tmp_path)) == 2
    assert opened(tmp_path) == (mean(1), mean(2), mean(3), mean(3, 1, size=FULL // 2), table(3), mean(4))


@pytest.mark.parametrize("lost", [1, 4, 150, 203])
def test_where_a_record_is_torn_its_slot_ends_and_is_gone_on_with(store: MeansStore, tmp_path: Path, lost: int) -> None:
    store.write(mean(1))
    store.write(mean(1, 1))
    (path,) = slots(tmp_path)
    os.truncate(path, path.stat().st_size - lost)
    again = reopened(tmp_path)
    assert found(again) == (mean(1),)
    again.write(table(1))
    assert opened(tmp_path) == (mean(1), table(1))


@pytest.mark.parametrize("place", [0, 5, 20, -1])
def test_bytes_that_are_not_what_their_hash_says_end_a_slot(store: MeansStore, tmp_path: Path, place: int) -> None:
    store.write(mean(1))
    (path,) = slots(tmp_path)
    size = path.stat().st_size
    store.write(mean(1, 1))
    end = path.stat().st_size
    store.write(mean(1, 2))
    spoiled = bytearray(path.read_bytes())
    spoiled[(size if place >= 0 else end) + place] ^= 0x40
    path.write_bytes(spoiled)
    assert opened(tmp_path) == (mean(1),)


def test_a_damaged_slot_costs_no_other(store: MeansStore, tmp_path: Path) -> None:
    for round in (1, 2, 3):
        store.write(mean(round))
    slots(tmp_path)[1].write_bytes(b"\xff" * 1000)
    assert opened(tmp_path) == (mean(1), mean(3))


def test_rounds_before_a_snapshot_are_forgotten_and_their_room_is_used_again(store: MeansStore, tmp_path: Path) -> None:
    store.forget(7)  # there are none
    for round in (1, 2, 3):
        store.write(mean(round))
        store.write(table(round))
    store.forget(2)
    assert opened(tmp_path) == (mean(2), table(2), mean(3), table(3))
    files = len(slots(tmp_path))
    store.write(mean(4, size=50))
    assert len(slots(tmp_path)) == files, "no fresh room is taken"
    assert opened(tmp_path) == (mean(2), table(2), mean(3), table(3), mean(4, size=50))
    store.forget(9)
    assert store.size == 0
    assert opened(tmp_path) == ()


def test_some_of_the_rounds_before_are_spared_for_others_the_newest_as_far_as_they_fit(
    store: MeansStore, tmp_path: Path
) -> None:
    for round in (1, 2, 3, 4):
        store.write(mean(round))
    each = store.size // 4
    store.forget(4, spare=2 * each)
    assert [round for round in range(1, 5) if store.holds(round)] == [2, 3, 4]
    assert opened(tmp_path) == (mean(2), mean(3), mean(4))
    assert store.size == each, "what is there for others alone does not count"
    store.write(mean(5))
    store.forget(5, spare=2 * each)
    assert opened(tmp_path) == (mean(3), mean(4), mean(5))
    assert len(slots(tmp_path)) == 4, "room is used again"
    store.forget(5)
    assert opened(tmp_path) == (mean(5),)


def test_where_a_disk_has_little_room_that_of_forgotten_rounds_is_given_back(store: MeansStore, tmp_path: Path) -> None:
    for round in (1, 2, 3, 4):
        store.write(mean(round))
    each = store.size // 4
    store.forget(2)
    store.forget(4, spare=each, gives_back=True)
    assert sorted(path.stat().st_size for path in slots(tmp_path)) == [0, 0, each, each]
    assert opened(tmp_path) == (mean(3), mean(4))
    store.write(mean(5))
    assert found(store) == opened(tmp_path) == (mean(3), mean(4), mean(5))
    assert len(slots(tmp_path)) == 4


def test_after_all_was_forgotten_earlier_rounds_count_again(store: MeansStore) -> None:
    store.write(mean(5))
    store.forget(5)
    store.forget_all()
    store.write(mean(2))  # of another branch of the log
    assert store.size > 0
    assert store.holds(2)


def test_the_table_of_a_round_is_told_if_all_its_means_are_here(store: MeansStore) -> None:
    for record in (mean(1), mean(1, 1), table(1), mean(2), table(2)):
        store.write(record)
    assert store.whole_tables(1) == [table(1)]
    assert store.whole_tables(2) == []
    assert store.whole_tables(3) == []


def test_what_an_earlier_use_has_left_in_a_slot_is_not_read(store: MeansStore, tmp_path: Path) -> None:
    """Records of one length follow each other exactly, whatever round they are of."""
    store.write(mean(1))
    store.write(mean(1, 1))
    store.write(mean(2))
    store.forget(2)
    assert store.read(1) == []
    store.write(mean(3))
    assert found(store) == opened(tmp_path) == (mean(2), mean(3))


def test_room_of_before_a_restart_is_used_again(store: MeansStore, tmp_path: Path) -> None:
    for round in (1, 2, 3):
        store.write(mean(round))
    store.forget(3)
    again = reopened(tmp_path)
    assert found(again) == (mean(3),)
    for round in (4, 5):
        again.write(mean(round))
    assert len(slots(tmp_path)) == 3
    assert opened(tmp_path) == (mean(3), mean(4), mean(5))


def test_all_that_was_written_is_forced_once(store: MeansStore, monkeypatch: pytest.MonkeyPatch) -> None:
    forced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", forced.append)
    store.write(mean(1))
    store.write(mean(1, 1))
    store.write(mean(2))
    store.force()
    store.force()
    assert len(forced) == 2, "each slot"
    store.write(table(2))
    store.force()
    assert len(forced) == 3


def test_what_could_not_be_forced_is_forced_by_the_next_try(store: MeansStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(handle: int) -> None:
        raise OSError(5, "Input/output error")

    store.write(mean(1))
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", fails)
        with pytest.raises(OSError, match="Input/output"):
            store.force()
    forced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", forced.append)
    store.force()
    assert len(forced) == 1


def test_while_a_disk_is_slow_to_force_more_is_written(store: MeansStore, monkeypatch: pytest.MonkeyPatch) -> None:
    is_written, begun = threading.Event(), threading.Event()

    def slowly(handle: int) -> None:
        begun.set()
        assert is_written.wait(30)

    store.write(mean(1))
    monkeypatch.setattr(os, "fdatasync", slowly)
    forcing = threading.Thread(target=store.force)
    forcing.start()
    assert begun.wait(30)
    store.write(mean(2))
    is_written.set()
    forcing.join()


def test_a_full_disk_leaves_what_was_whole(store: MeansStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pwritev

    def half(handle: int, pieces: Any, place: int) -> int:
        return whole(handle, [bytes(pieces[0])], place)

    store.write(mean(1))
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", half)
        with pytest.raises(OSError, match="No space left"):
            store.write(mean(1, 1))
    assert opened(tmp_path) == (mean(1),)
    store.write(mean(1, 1))
    assert opened(tmp_path) == (mean(1), mean(1, 1))
