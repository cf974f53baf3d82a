"""The log of a run on disk: what was put there is there after a crash, and what was only half written is not."""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from shoal.node.base.home import KEPT
from shoal.node.base.kept import KeptVote
from shoal.node.run import means_store
from shoal.node.run.log_store import AWAY, JOURNAL, LEFT, RAN, SWITCH, LogStore
from shoal.node.run.means_store import MeansStore
from shoal.protocol.averaging.shelf import table_digest
from shoal.protocol.base.errors import LocalError
from shoal.protocol.base.ids import digest, result_hash
from shoal.protocol.log.journal import framed
from shoal.protocol.log.register import MAX_BODY, after, first_state, founded, voters_root
from shoal.protocol.log.shortcuts import START
from shoal.protocol.log.trust import Crash
from shoal.protocol.member.facts import FOUNDING_LIFE
from shoal.protocol.member.past import Kept
from shoal.protocol.messages.averaging import Made, Mean, Table
from shoal.protocol.messages.log import Crossing, Decided, Phase, Register, Shortcut, Switch, Voted, VoteFile, Way
from tests.simulation.log_search import rules_of
from tests.simulation.log_worlds import BRANCH, PEERS
from tests.unit.disk_kit import DiskLog, refuse_folders
from tests.unit.log.test_core import Swarm, newcomer

CLOCK = time.time_ns  # of this machine, whatever a test makes of it

A = PEERS[0]
RULES = rules_of(Crash, A)
SEEDED = digest("what the seed gives")
FOUNDING = founded(BRANCH, A, FOUNDING_LIFE, parts=(first_state(0, 0, SEEDED),))


def decided(count: int) -> tuple[Decided, ...]:
    swarm = Swarm(FOUNDING)
    for number in range(count):
        swarm.do(A, lambda core, n=number: core.submit(newcomer(n)))  # type: ignore[misc]
    return swarm.cores[A].log


ENTRIES = decided(3)
MIDDLE = after(FOUNDING, ENTRIES[0].entry, RULES)  # the register after the first entry
SHORTCUT = Shortcut(FOUNDING.branch, 0, True, START, MIDDLE)
VOTED = Voted(2, Phase.PREPARE, ENTRIES[2].entry)
VOTES = VoteFile(FOUNDING_LIFE, voters_root(FOUNDING), 2, 3, VOTED, None)


def register_after(count: int) -> Register:
    """The register after so many entries."""
    register = FOUNDING
    for each in ENTRIES[:count]:
        register = after(register, each.entry, RULES)
    return register


def mean(round: int, chunk: int = 0, size: int = 100) -> Mean:
    payload = bytes([round, chunk]) * size
    return Mean(0, round, chunk, Made(result_hash(b"\x01", payload), b"\x01", 0, A, FOUNDING_LIFE, b"said"), payload)


def table(round: int) -> Table:
    return Table(0, round, (mean(round).made, mean(round, 1).made))


@pytest.fixture
def store(tmp_path: Path) -> LogStore:
    store = LogStore(tmp_path)
    store.open(FOUNDING, RULES, is_founder=True)
    return store


def opened(folder: Path, *, is_founder: bool = False) -> Kept:
    """What the next process finds."""
    return LogStore(folder).open(FOUNDING, RULES, is_founder)


def means_of(folder: Path) -> list[Mean | Table]:
    """Those that the next process finds."""
    store = LogStore(folder)
    store.open(FOUNDING, RULES, is_founder=False)
    return [record for round in range(5) for record in store.means.read(round)]


def journal_of(store: LogStore) -> Path:
    return store.folder / JOURNAL


def test_a_founder_begins_in_the_life_that_all_know_and_others_in_one_of_their_own(tmp_path: Path) -> None:
    assert LogStore(tmp_path).first() is None
    ours = opened(tmp_path, is_founder=True)
    assert ours == replace(ours, first=FOUNDING, way=START, register=FOUNDING, entries=())
    assert ours.votes == VoteFile(FOUNDING_LIFE, voters_root(FOUNDING), 0, 0, None, None)
    assert opened(tmp_path) == ours, "it has begun, so it is opened as it was"
    first = LogStore(tmp_path).first()
    assert first is not None
    assert first.parts[0].root == SEEDED
    other = tmp_path / "other"
    other.mkdir()
    assert opened(other).votes.life > FOUNDING_LIFE
    assert opened(other, is_founder=True).votes.life > FOUNDING_LIFE, "nobody is founded twice"


def test_what_was_put_is_there_after_reopening(store: LogStore, tmp_path: Path) -> None:
    for each in ENTRIES[:2]:
        store.put("log", each)
    store.put("vote", replace(VOTES, number=2))
    for record in (mean(1), mean(1, 1), table(1)):
        store.put("means", record)
    store.put("log", ENTRIES[2])
    store.put("vote", VOTES)
    store.put("means", mean(2))
    kept = opened(tmp_path)
    assert (kept.first, kept.entries, kept.register.number, kept.votes) == (FOUNDING, ENTRIES, 3, VOTES)
    assert means_of(tmp_path) == [mean(1), mean(1, 1), table(1), mean(2)]
    _, _, found, _ = means_of(tmp_path)
    assert isinstance(found, Table)
    assert table_digest(found.means) == table_digest(table(1).means)


@pytest.mark.parametrize(("free", "spared"), [(1 << 40, [1, 2, 3]), (0, [3])])
def test_a_disk_with_little_room_is_not_filled_with_what_only_others_may_want(
    free: int, spared: list[int], store: LogStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(means_store, "FULL", 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    for round in (1, 2, 3):
        store.put("means", mean(round))
    store.forget_means(3, spare=1 << 20)
    assert [record.round for record in means_of(tmp_path)] == spared
    used = [path for path in (store.folder / "means").iterdir() if path.stat().st_size]
    assert len(used) == len(spared)


def test_of_the_means_none_is_left_when_the_log_goes_on_on_another_branch(store: LogStore, tmp_path: Path) -> None:
    for record in (mean(1), mean(1, 1), table(1), mean(2)):
        store.put("means", record)
    store.put("log", SHORTCUT)
    assert len(means_of(tmp_path)) == 4
    assert not (store.folder / LEFT).exists()
    later = VoteFile(FOUNDING_LIFE + 1, voters_root(MIDDLE), 0, 2, None, None)
    store.put("switch", Switch(SHORTCUT, later))
    assert means_of(tmp_path) == []
    assert opened(tmp_path).votes == later
    assert (store.folder / LEFT).exists(), "until the states of the left branch are set aside"
    store.put("means", mean(3))
    assert means_of(tmp_path) == [mean(3)]


def end_before(patch: pytest.MonkeyPatch, doing: int) -> None:
    """A process is killed at a switch of branches before this of its writes, or stopped while the disk is full."""
    count = itertools.count()

    def ending(call: Callable[..., None]) -> Callable[..., None]:
        def called(*args: object) -> None:
            if next(count) >= doing:
                raise OSError(28, "No space left on device")
            call(*args)

        return called

    patch.setattr(os, "replace", ending(os.replace))
    patch.setattr(MeansStore, "forget_all", ending(MeansStore.forget_all))


@pytest.mark.parametrize(("written", "has_left"), [(0, False), (1, False), (2, True), (3, True), (4, True)])
def test_states_are_of_a_branch_that_was_left_once_the_log_goes_on_on_another(
    store: LogStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int, has_left: bool
) -> None:
    """And no means are. A process that is killed earlier has left nothing."""
    store.put("means", mean(1))
    before = journal_of(store).read_bytes()
    with monkeypatch.context() as patched:
        end_before(patched, written)
        with pytest.raises(LocalError) if written < 4 else nullcontext():
            store.put("switch", Switch(SHORTCUT, replace(VOTES, number=2)))
    assert (journal_of(store).read_bytes() != before) is has_left
    assert LogStore(tmp_path).has_left() is has_left
    assert means_of(tmp_path) == ([] if has_left else [mean(1)])
    again = LogStore(tmp_path)
    again.open(FOUNDING, RULES, is_founder=False)
    again.put("means", mean(2))
    assert LogStore(tmp_path).has_left() is has_left, "until the states are set aside"
    assert mean(2) in means_of(tmp_path), "it was made on the branch that counts"


@pytest.mark.parametrize("written", range(5))
def test_states_of_a_branch_that_was_left_stay_so_when_another_one_is(
    store: LogStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    store.put("switch", Switch(SHORTCUT, replace(VOTES, number=2)))
    store.put("means", mean(1))
    with monkeypatch.context() as patched:
        end_before(patched, written)
        with pytest.raises(LocalError) if written < 4 else nullcontext():
            store.put("switch", Switch(replace(SHORTCUT, register=register_after(3)), VOTES))
    assert LogStore(tmp_path).has_left()
    assert means_of(tmp_path) == ([mean(1)] if written < 2 else [])


@pytest.mark.parametrize("written", range(5))
def test_a_switch_of_branches_that_did_not_end_is_ended_by_a_start_that_does_not_ask(
    store: LogStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """A replica is nobody else's, so it is kept whatever the branch."""
    store.put("means", mean(1))
    with monkeypatch.context() as patched:
        end_before(patched, written)
        with pytest.raises(LocalError) if written < 4 else nullcontext():
            store.put("switch", Switch(SHORTCUT, replace(VOTES, number=2)))
    assert means_of(tmp_path) == ([mean(1)] if written < 2 else [])


def test_a_log_that_cannot_be_made_shorter_stays_as_it_is_and_the_run_goes_on(
    store: LogStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for each in ENTRIES:
        store.put("log", each)
    before = journal_of(store).read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("shoal.node.run.log_store.replace_file", full)
        store.put("shorten", SHORTCUT)
        assert [each.code for each in caplog.records] == ["record-not-shortened"]  # type: ignore[attr-defined]
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", full)
        store.put("shorten", SHORTCUT)
    assert len(caplog.records) == 2
    store.put("vote", VOTES)
    assert journal_of(store).read_bytes() == before + framed(VOTES)
    store.put("shorten", SHORTCUT)
    assert LogStore(tmp_path).first() == SHORTCUT.register
    monkeypatch.setattr("shoal.node.run.log_store.replace_file", full)
    store.put("shorten", SHORTCUT)
    assert len(caplog.records) == 2, "there is nothing to cut, so nothing is written"


def test_a_log_that_was_made_shorter_is_gone_on_with_only_once_its_name_outlives_a_power_cut(
    store: LogStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Till then an older file may come back: votes that are written to the new one meanwhile would be forgotten."""
    for each in ENTRIES:
        store.put("log", each)
    store.put("vote", VOTES)
    with monkeypatch.context() as patched:
        refuse_folders(patched)
        for _ in range(2):
            with pytest.raises(LocalError):
                store.put("shorten", SHORTCUT)
            assert LogStore(tmp_path).first() == MIDDLE, "this is the new file"
        with pytest.raises(LocalError):
            opened(tmp_path)
    forced = DiskLog(monkeypatch)
    store.put("shorten", SHORTCUT)
    assert forced.order(store.folder) == [store.folder.name]
    store.put("shorten", replace(SHORTCUT, register=register_after(2)))
    kept = opened(tmp_path)
    assert (kept.first, kept.entries, kept.votes) == (register_after(2), ENTRIES[2:], VOTES)
    assert store.size == journal_of(store).stat().st_size
    assert not caplog.records


def test_what_an_earlier_process_has_replaced_outlives_a_power_cut(
    store: LogStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been killed before the folder was forced."""
    forced = DiskLog(monkeypatch)
    opened(tmp_path)
    assert forced.order(store.folder) == [store.folder.name]


def test_who_is_killed_at_a_switch_of_branches_is_on_one_of_them_with_its_vote(
    store: LogStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The branch that it leaves may have fewer entries than the other one."""
    ours, end = replace(VOTES, number=1), replace(SHORTCUT, register=register_after(3))
    store.put("vote", ours)
    theirs = VoteFile(FOUNDING_LIFE + 1, voters_root(end.register), 0, 4, None, None)
    caplog.set_level(logging.WARNING, "shoal.run")
    with monkeypatch.context() as patched:
        patched.setattr("shoal.node.run.log_store.replace_file", lambda path, content: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            store.put("switch", Switch(end, theirs))
    assert opened(tmp_path).votes == ours
    store.put("switch", Switch(end, theirs))
    kept = opened(tmp_path)
    assert (kept.register, kept.votes) == (end.register, theirs)
    assert not caplog.records


def test_the_size_is_that_of_the_journal_from_the_first_byte_on(store: LogStore, tmp_path: Path) -> None:
    assert store.size == journal_of(store).stat().st_size
    store.put("log", ENTRIES[0])
    assert store.size == journal_of(store).stat().st_size
    again = LogStore(tmp_path)
    again.open(FOUNDING, RULES, is_founder=False)
    again.put("vote", VOTES)
    assert again.size == journal_of(store).stat().st_size
    again.put("log", SHORTCUT)
    assert again.size == journal_of(store).stat().st_size


def test_a_torn_tail_of_the_journal_is_cut_off_and_the_vote_before_it_counts(store: LogStore, tmp_path: Path) -> None:
    store.put("log", ENTRIES[0])
    store.put("vote", VOTES_OF_TWO := replace(VOTES, number=2, voted=None))
    size = journal_of(store).stat().st_size
    store.put("log", ENTRIES[1])
    journal_of(store).write_bytes(journal_of(store).read_bytes()[:-1])
    again = LogStore(tmp_path)
    kept = again.open(FOUNDING, RULES, is_founder=True)
    assert (kept.entries, kept.votes) == (ENTRIES[:1], VOTES_OF_TWO)
    assert journal_of(store).stat().st_size == size
    for each in ENTRIES[1:]:
        again.put("log", each)
    assert opened(tmp_path).entries == ENTRIES


@pytest.mark.parametrize("is_founder", [True, False])
def test_a_damaged_journal_gives_another_life_with_the_entries_before_the_damage(
    store: LogStore, tmp_path: Path, is_founder: bool, caplog: pytest.LogCaptureFixture
) -> None:
    for each in ENTRIES[:2]:
        store.put("log", each)
    store.put("vote", VOTES)
    store.put("means", mean(1))
    spoiled = bytearray(journal_of(store).read_bytes())
    spoiled[-len(framed(VOTES)) - 1] ^= 1  # within the last entry
    journal_of(store).write_bytes(spoiled)
    caplog.set_level(logging.WARNING, "shoal.run")
    kept = opened(tmp_path, is_founder=is_founder)
    assert kept.entries == ENTRIES[:1]
    assert kept.votes == VoteFile(kept.votes.life, voters_root(MIDDLE), 0, 0, None, None)
    assert kept.votes.life > FOUNDING_LIFE
    assert means_of(tmp_path) == [mean(1)]
    assert [each.code for each in caplog.records] == ["record-damaged"]  # type: ignore[attr-defined]
    assert opened(tmp_path) == kept, "it is damaged no more"
    assert len(caplog.records) == 1


def test_a_journal_of_which_nothing_is_whole_is_begun_anew_in_another_life(store: LogStore, tmp_path: Path) -> None:
    journal_of(store).write_bytes(b"\xff" * 100)
    kept = opened(tmp_path, is_founder=True)
    assert (kept.first, kept.entries, kept.votes.voted) == (FOUNDING, (), None)
    assert kept.votes.life > FOUNDING_LIFE
    assert opened(tmp_path) == kept


def test_a_switch_that_was_cut_short_does_not_need_a_journal(store: LogStore, tmp_path: Path) -> None:
    """Without one the log begins anew: there is nothing that it could have left."""
    (store.folder / SWITCH).write_bytes(b"how another journal begins")
    journal_of(store).unlink()
    assert opened(tmp_path).register == FOUNDING
    assert not (store.folder / SWITCH).exists()
    assert not LogStore(tmp_path).has_left()


def test_a_shorter_journal_says_the_same_and_keeps_the_last_vote(store: LogStore, tmp_path: Path) -> None:
    for each in ENTRIES:
        store.put("log", each)
    store.put("vote", replace(VOTES, view=1))
    store.put("vote", VOTES)
    before, said = store.size, opened(tmp_path)
    store.put("shorten", SHORTCUT)
    assert store.size < before
    kept = opened(tmp_path)
    assert (kept.first, kept.entries, kept.votes) == (MIDDLE, ENTRIES[1:], VOTES)
    assert kept.register == said.register
    first = LogStore(tmp_path).first()
    assert first is not None
    assert first.number, "it begins with a later state"
    store.put("vote", replace(VOTES, view=5, number=4))
    assert opened(tmp_path).votes.view == 5


def test_a_journal_is_made_shorter_only_to_what_can_be_read_again(store: LogStore, tmp_path: Path) -> None:
    for each in ENTRIES:
        store.put("log", each)
    store.put("vote", VOTES)
    long = Crossing((), MIDDLE, replace(ENTRIES[0].entry, body=bytes(MAX_BODY)))
    store.put("shorten", replace(SHORTCUT, way=Way((long,) * 70, ())))
    kept = opened(tmp_path)
    assert (kept.first, kept.entries, kept.votes) == (FOUNDING, ENTRIES, VOTES)


def test_a_shortcut_replaces_all_entries_and_keeps_the_last_vote(store: LogStore, tmp_path: Path) -> None:
    """It comes from a peer, and leads over entries that we have never had."""
    store.put("log", ENTRIES[0])
    store.put("vote", ours := replace(VOTES, number=2, voted=Voted(2, Phase.PREPARE, ENTRIES[1].entry)))
    store.put("means", mean(1))
    end = replace(SHORTCUT, register=register_after(3))
    store.put("log", end)
    kept = opened(tmp_path)
    assert (kept.first, kept.register, kept.entries, kept.votes) == (end.register, end.register, (), ours)
    assert means_of(tmp_path) == [mean(1)]
    assert store.size == journal_of(store).stat().st_size


def test_a_vote_of_before_a_restart_outlives_a_shorter_journal(store: LogStore, tmp_path: Path) -> None:
    for each in ENTRIES:
        store.put("log", each)
    store.put("vote", VOTES)
    again = LogStore(tmp_path)
    again.open(FOUNDING, RULES, is_founder=False)
    again.put("shorten", SHORTCUT)
    assert opened(tmp_path).votes == VOTES


def test_who_has_stopped_with_the_vote_says_so_until_it_is_back(store: LogStore, tmp_path: Path) -> None:
    store.mark_kept(KeptVote())
    assert (store.folder / KEPT).exists()
    for had_kept in (True, False):
        again = LogStore(tmp_path)
        again.open(FOUNDING, RULES, is_founder=False)
        assert again.had_kept_vote is had_kept
        assert not (store.folder / KEPT).exists()


def at(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """The clock of this machine says that it is so much later than it was."""
    now = CLOCK() + round(seconds * 1e9)
    monkeypatch.setattr("shoal.node.run.log_store.time.time_ns", lambda: now)


def test_who_ran_until_a_moment_ago_was_not_away_however_old_its_last_record_is(
    store: LogStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds may take longer than a minute."""
    store.put("log", ENTRIES[0])
    at(monkeypatch, 3600.0)
    store.note_running()
    at(monkeypatch, 3600.0 + AWAY / 2)
    assert not opened(tmp_path).was_away
    at(monkeypatch, 3600.0 + AWAY + 1)
    assert opened(tmp_path).was_away
    assert opened(tmp_path).was_away, "a start is not enough: it has not looked for the others yet"


def test_a_record_is_no_sign_that_a_node_runs(store: LogStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else who is started twice within a minute, and reads something between, would not look for the others."""
    at(monkeypatch, 2 * AWAY)
    store.put("log", ENTRIES[0])
    assert opened(tmp_path).was_away


@pytest.mark.parametrize("back", [1.0, 3600.0])
def test_whose_clock_went_back_was_away(
    store: LogStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, back: float
) -> None:
    store.note_running()
    at(monkeypatch, -back)
    assert opened(tmp_path).was_away


def test_who_begins_was_not_away_and_of_whom_no_time_is_known_was(store: LogStore, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    assert not opened(tmp_path / "other").was_away
    (store.folder / RAN).unlink()
    assert opened(tmp_path).was_away
    assert opened(tmp_path).was_away


def test_a_folder_that_is_gone_is_not_made_again_to_say_that_a_node_runs(store: LogStore) -> None:
    store.forget()
    store.note_running()
    assert not store.folder.exists()


def test_who_leaves_for_good_keeps_nothing(store: LogStore, tmp_path: Path) -> None:
    store.put("log", ENTRIES[0])
    store.put("means", mean(1))
    store.mark_kept(KeptVote())
    for _ in range(2):
        store.forget()
        assert not store.folder.exists()
    kept = opened(tmp_path)
    assert (kept.entries, means_of(tmp_path)) == ((), [])
    assert kept.votes.life > FOUNDING_LIFE


def test_a_record_that_cannot_be_written_leaves_no_half_of_it_behind(
    store: LogStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size, full = store.size, OSError(28, "No space left on device")

    def fails(descriptor: int) -> None:
        raise full

    with monkeypatch.context() as patched:
        patched.setattr("shoal.node.run.log_store.os.fdatasync", fails)
        with pytest.raises(LocalError, match="a member must not forget what is there") as caught:
            store.put("log", ENTRIES[0])
    assert caught.value.__cause__ is full  # so it is tried again
    assert (store.size, journal_of(store).stat().st_size) == (size, size)
    for each in ENTRIES:
        store.put("log", each)
    assert opened(tmp_path).entries == ENTRIES


def test_a_result_is_forced_to_disk_with_its_means(store: LogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    forced: list[bool] = []
    monkeypatch.setattr(store.means, "force", lambda: forced.append(True))
    store.put("means", mean(1))
    store.put("result", mean(1, 1))
    store.put("means", table(1))
    store.put("vote", VOTES)
    assert forced == []
    store.put("result", table(1))
    assert forced == [True]


def test_a_folder_that_is_none_is_an_error_in_words(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("no folder")
    with pytest.raises(LocalError, match="leave the run and join it again"):
        opened(tmp_path)
