"""The daily volume: counted across restarts, begun anew each day, and seldom written to disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.node.daemon.guest.volume import DAY, SAVE_EVERY, DailyVolume

GB = 10**9
NOON = 20_000 * DAY + DAY // 2  # of 2024-10-04


class Wire:
    """The bytes that have passed, and a clock."""

    def __init__(self) -> None:
        self.total, self.now = 0, float(NOON)

    def volume(self, folder: Path, limit: int | None = GB) -> DailyVolume:
        return DailyVolume(folder / "volume.json", limit, lambda: self.total, lambda: self.now)


def saved(volume: DailyVolume) -> None:
    volume.write(volume.record())


def test_what_passes_is_counted_until_it_is_used_up(tmp_path: Path) -> None:
    wire = Wire()
    wire.total = 5 * GB  # before anybody looked
    volume = wire.volume(tmp_path)
    seen = []
    for more in (GB // 2, GB // 2 - GB // 20, GB // 20):
        wire.total += more
        seen.append((volume.used, volume.is_nearly_used_up, volume.is_used_up))
    assert seen == [(GB // 2, False, False), (GB - GB // 20, True, False), (GB, True, True)]


def test_a_new_day_begins_at_midnight_of_utc(tmp_path: Path) -> None:
    wire = Wire()
    volume = wire.volume(tmp_path)
    wire.total = GB
    assert volume.is_used_up
    wire.now = volume.goes_on_at - 1
    assert volume.is_used_up
    wire.now += 1
    assert wire.now % DAY == 0
    assert not volume.is_used_up
    assert volume.used == 0
    wire.total += 7
    assert volume.used == 7


def test_a_restart_goes_on_counting_on_the_same_day_only(tmp_path: Path) -> None:
    wire = Wire()
    volume = wire.volume(tmp_path)
    wire.total = GB // 3
    saved(volume)
    assert json.loads((tmp_path / "volume.json").read_text()) == {"day": "2024-10-04", "bytes": GB // 3}
    again = Wire()
    assert again.volume(tmp_path).used == GB // 3
    again.total = 1
    again.now += DAY
    assert again.volume(tmp_path).used == 0


def test_a_clock_that_is_set_back_wins_no_new_day_and_loses_none(tmp_path: Path) -> None:
    wire = Wire()
    volume = wire.volume(tmp_path)
    wire.total = GB
    assert volume.is_used_up
    wire.now -= 400 * DAY  # it had been ahead
    assert volume.is_used_up
    saved(volume)
    wire.now -= DAY
    assert volume.used == GB
    again = Wire()
    again.now = wire.now
    restarted = again.volume(tmp_path)
    assert restarted.used == GB
    again.now = wire.now = restarted.goes_on_at
    assert restarted.used == volume.used == 0


def test_a_clock_that_is_ahead_for_a_while_wins_no_new_day(tmp_path: Path) -> None:
    wire = Wire()
    volume = wire.volume(tmp_path)
    wire.total = GB - 10
    assert volume.used == GB - 10
    wire.now += 3 * DAY
    wire.total += 4
    assert volume.used == 4
    wire.now -= 3 * DAY
    wire.total += 6
    assert volume.is_used_up
    wire.now += DAY
    assert volume.used == 0


def test_a_start_before_the_clock_is_set_wins_no_new_day(tmp_path: Path) -> None:
    """A machine without a battery for its clock is in 1970 until it has asked for the time."""
    wire = Wire()
    wire.total = 1
    volume = wire.volume(tmp_path)
    wire.total += GB - 10
    saved(volume)
    again = Wire()
    again.now = 300.0
    restarted = again.volume(tmp_path)
    assert restarted.used == GB - 10, "which day it is, nobody knows"
    again.total += 4
    assert restarted.used == GB - 6
    saved(restarted)
    third = Wire()
    third.now = 300.0
    restarted_again = third.volume(tmp_path)
    third.now = NOON
    for volume in (restarted, restarted_again):
        again.now = NOON
        assert volume.used == GB - 10
    third.now += DAY
    assert restarted_again.used == 0


@pytest.mark.parametrize("ways", [(3, 5, 0), (-3, 0), (-1, 0), (1, 0), (400, 0), (400, -400, 3, 0), (1, 2, 3, 4, 0)])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_clock_that_is_wrong_several_times_loses_no_day(
    tmp_path: Path, ways: tuple[int, ...], restarts: bool
) -> None:
    wire = Wire()
    volume = wire.volume(tmp_path)
    wire.total = GB
    assert volume.is_used_up
    saved(volume)
    for days in ways:
        wire.now = NOON + days * DAY
        wire.total += 1
        assert volume.used >= 1
        saved(volume)
        if restarts:
            volume = wire.volume(tmp_path)
    assert volume.is_used_up
    wire.now = NOON + 9 * DAY
    assert volume.used == 0


@pytest.mark.parametrize(
    "text",
    [
        "[1]",
        '{"day": 7, "bytes": 1}',
        '{"day": "x", "bytes": 1}',
        "[" * 100_000,
        '{"day": "2024-10-04", "bytes": Infinity}',
        '{"day": "2024-10-04", "bytes": 1, "others": [7]}',
        "",
        "{}",
        "[]",
        '{"day": "2024-10-04", "bytes": "many"}',
        "\xff",
    ],
)
def test_a_damaged_file_is_said_and_begun_anew(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "volume.json").write_text(text)
    assert Wire().volume(tmp_path).used == 0
    assert "damaged" in caplog.text


def test_a_full_disk_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    wire = Wire()
    volume = wire.volume(tmp_path / "gone")
    wire.total = 5
    saved(volume)
    assert "cannot write" in caplog.text
    assert volume.used == 5


def test_it_is_written_when_that_is_worth_it(tmp_path: Path) -> None:
    wire = Wire()
    volume = wire.volume(tmp_path)
    assert not volume.is_worth_saving(), "nothing has passed"
    wire.now += SAVE_EVERY
    wire.total = GB // 10_000
    assert not volume.is_worth_saving(), "hardly anything has"
    wire.total = GB // 100
    assert volume.is_worth_saving()
    saved(volume)
    wire.total = GB // 10
    assert not volume.is_worth_saving(), "it was written just now"
    wire.now += SAVE_EVERY
    assert volume.is_worth_saving()
    wire.now -= 10 * SAVE_EVERY
    assert volume.is_worth_saving(), "the clock was set back"


def test_without_a_limit_it_is_counted_and_never_written(tmp_path: Path) -> None:
    wire = Wire()
    volume = wire.volume(tmp_path, None)
    wire.total, wire.now = 10**15, wire.now + 2 * SAVE_EVERY
    assert volume.used == 10**15
    assert not volume.is_used_up
    assert not volume.is_nearly_used_up
    assert not volume.is_worth_saving()
    saved(volume)
    assert not (tmp_path / "volume.json").exists()
