"""Why a node is paused and until when, by a virtual clock: schedule, use of the machine, power, GPU, and a person."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from shoal.node.base.options import NodeSettings
from shoal.node.base.schedule import parse_schedule
from shoal.node.daemon.guest.rules import LINGERS, Asked, Decision, Manners, Reason, Seen, in_words, pause_ends

BERLIN = ZoneInfo("Europe/Berlin")
NIGHT = parse_schedule("22:00-07:00")
NOON = datetime(2026, 6, 10, 12, tzinfo=UTC).timestamp()  # a Wednesday
HOUR = 3600.0


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The system's clock shows UTC."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def berlin(*when: int) -> float:
    return datetime(*when, tzinfo=BERLIN).timestamp()  # type: ignore[arg-type, misc]


def codes(reasons: list[Reason]) -> list[str]:
    return [each.code for each in reasons]


# -- hours --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clock", "is_open"),
    [("21:59", False), ("22:00", True), ("23:59", True), ("00:00", True), ("06:59", True), ("07:00", False)],
)
def test_hours_go_over_midnight(clock: str, is_open: bool) -> None:
    hour, minute = map(int, clock.split(":"))
    assert NIGHT.is_open(berlin(2026, 6, 10, hour, minute), BERLIN) == is_open


def test_days_are_those_on_which_hours_begin() -> None:
    weekdays = parse_schedule("Mon-Fri 22:00-07:00, Sat-Sun 00:00-24:00")
    open_at = {
        "Friday night": berlin(2026, 6, 12, 23),
        "Saturday early": berlin(2026, 6, 13, 3),
        "Saturday noon": berlin(2026, 6, 13, 12),
        "Sunday, last minute": berlin(2026, 6, 14, 23, 59),
    }
    assert {name for name, at in open_at.items() if not weekdays.is_open(at, BERLIN)} == set()
    assert not weekdays.is_open(berlin(2026, 6, 15, 3), BERLIN), "Monday early, as Sunday's hours end at midnight"
    assert weekdays.opens_at(berlin(2026, 6, 15, 3), BERLIN) == berlin(2026, 6, 15, 22)
    only = parse_schedule("Tue 09:00-10:00")
    assert only.opens_at(berlin(2026, 6, 10, 12), BERLIN) == berlin(2026, 6, 16, 9)
    assert parse_schedule("Sat-Mon 09:00-10:00").is_open(berlin(2026, 6, 14, 9), BERLIN), "days go over the week's end"


def test_hours_are_those_that_the_clock_shows_where_it_is_put_forward_or_back() -> None:
    forward, back = (2026, 3, 29), (2026, 10, 25)
    early = parse_schedule("01:30-02:30")
    begin = berlin(*forward, 1, 30)
    assert [early.is_open(begin + minutes * 60, BERLIN) for minutes in (0, 29, 30)] == [True, True, False], (
        "after 01:59 comes 03:00"
    )
    begin = berlin(*back, 1, 30)
    shown = [early.is_open(begin + minutes * 60, BERLIN) for minutes in (0, 59, 60, 89, 90, 119, 120)]
    assert shown == [True, True, False, False, True, True, False], "02:00 to 02:30 is shown twice"
    assert NIGHT.opens_at(berlin(2026, 3, 28, 12), BERLIN) + 8 * HOUR == berlin(2026, 3, 29, 7), "a short night"


@pytest.mark.parametrize(
    ("hours", "now", "begins"),
    [
        ("02:30-02:45", (2026, 3, 28, 12), berlin(2026, 3, 30, 2, 30)),
        ("Sun 02:30-02:45", (2026, 3, 28, 12), berlin(2026, 4, 5, 2, 30)),
        ("Sun 02:30-02:45", (2026, 3, 22, 12), berlin(2026, 4, 5, 2, 30)),
        ("02:30-03:30", (2026, 3, 28, 12), berlin(2026, 3, 29, 3)),
        ("02:30-02:45", (2026, 10, 24, 12), berlin(2026, 10, 25, 1, 30) + HOUR),
        ("02:30-02:45", (2026, 10, 25, 2, 45), berlin(2026, 10, 25, 1, 30) + 2 * HOUR),
        ("01:30-02:30", (2026, 10, 25, 2, 45), berlin(2026, 10, 25, 1) + 2 * HOUR),
        ("02:30-02:45", (2026, 10, 25, 3), berlin(2026, 10, 26, 2, 30)),
    ],
)
def test_hours_begin_when_the_clock_shows_them(hours: str, now: tuple[int, ...], begins: float) -> None:
    schedule = parse_schedule(hours)
    assert not schedule.is_open(berlin(*now), BERLIN)
    assert schedule.opens_at(berlin(*now), BERLIN) == begins
    assert schedule.is_open(begins, BERLIN)


def test_the_system_s_own_clock_is_put_forward_and_back_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    hours = parse_schedule("02:30-02:45")
    assert hours.opens_at(berlin(2026, 3, 28, 12)) == berlin(2026, 3, 30, 2, 30)
    assert hours.opens_at(berlin(2026, 10, 25, 2, 45)) == berlin(2026, 10, 25, 1, 30) + 2 * HOUR


@pytest.mark.parametrize("text", ["22:00-07:00", "Mon-Fri 22:00-07:00, Sat-Sun 00:00-24:00", "Tue 09:00-10:00"])
def test_hours_are_written_as_they_are_read(text: str) -> None:
    assert str(parse_schedule(text)) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no hours"),
        ("22-7", "is no hours"),
        ("25:00-26:00", "a clock shows"),
        ("22:75-23:00", "a clock shows"),
        ("07:00-07:00", "has no length"),
        ("24:00-07:00", "has no length"),
        ("Mo 22:00-23:00", "is no hours"),
        ("Mon-Fry 22:00-23:00", "'Fry' is no day"),
        ("22:00-07:00,", "is no hours"),
        (",".join(["22:00-07:00"] * 33), "33 hours with commas between: give at most 32"),
    ],
)
def test_wrong_hours_are_explained(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_schedule(text)


# -- reasons ------------------------------------------------------------------------------------------------


def test_outside_its_hours_a_node_is_paused_until_they_begin() -> None:
    decision, manners = Decision(), Manners(schedule=NIGHT)
    [reason] = decision.reasons(NOON, manners, Seen())
    assert (reason.code, reason.until) == ("schedule", NOON + 10 * HOUR)
    assert "(22:00-07:00, --schedule), which begin at 2026-06-10 22:00" in reason.words
    assert decision.reasons(NOON + 10 * HOUR, manners, Seen()) == []
    assert decision.reasons(NOON + 19 * HOUR - 1, manners, Seen()) == []
    assert codes(decision.reasons(NOON + 19 * HOUR, manners, Seen())) == ["schedule"]


def test_a_machine_must_be_idle_for_its_minutes() -> None:
    decision, manners, seen = Decision(), Manners(idle=10), Seen(used_at=NOON, use="input at a keyboard or terminal")
    [reason] = decision.reasons(NOON + 599, manners, seen)
    assert (reason.code, reason.until) == ("in-use", NOON + 600)
    assert "by input at a keyboard or terminal; it must be idle for 10 min" in reason.words
    assert decision.reasons(NOON + 600, manners, seen) == []
    assert decision.reasons(NOON, Manners(), seen) == [], "without the rule"
    assert decision.reasons(NOON, manners, Seen()) == [], "what is not known is no reason"


@pytest.mark.parametrize(
    ("manners", "seen", "code"),
    [
        (Manners(mains=True), Seen(on_battery=True), "on-battery"),
        (Manners(gpu=True), Seen(gpu_users=("blender (pid 4242)",)), "gpu-in-use"),
    ],
)
def test_what_flaps_counts_until_it_has_been_absent_for_a_while(manners: Manners, seen: Seen, code: str) -> None:
    decision = Decision()
    assert decision.reasons(NOON, manners, Seen()) == []
    assert codes(decision.reasons(NOON + 1, manners, seen)) == [code], "at once"
    [ending] = decision.reasons(NOON + 2, manners, Seen())
    assert ending.until == NOON + 1 + LINGERS
    assert ending.words.endswith(", until a moment ago")
    assert codes(decision.reasons(NOON + 30, manners, seen)) == [code]
    assert codes(decision.reasons(NOON + 30 + LINGERS - 1, manners, Seen())) == [code], "counted from the last time"
    assert decision.reasons(NOON + 30 + LINGERS, manners, Seen()) == []
    decision.reasons(NOON + 200, manners, seen)
    assert decision.reasons(NOON + 201, Manners(), Seen()) == [], "the owner has given up the rule"
    decision.reasons(NOON + 300, manners, seen)
    assert decision.reasons(NOON, manners, Seen()) == [], "a clock that is set back keeps nobody paused for long"


def test_without_the_rules_nothing_that_is_seen_is_a_reason() -> None:
    seen = Seen(NOON, "input", on_battery=True, gpu_users=("blender",))
    assert Decision().reasons(NOON, Manners(), seen) == []
    assert Manners.of(NodeSettings(Path("/"))) == Manners()


def test_what_a_person_asks_for_holds_for_its_time_or_until_they_resume() -> None:
    decision = Decision()
    [reason] = decision.reasons(NOON, Manners(), Seen(), Asked(NOON, NOON + 2 * HOUR))
    assert (reason.code, reason.until) == ("asked", NOON + 2 * HOUR)
    assert reason.words == "you have asked for it at 2026-06-10 12:00, until 2026-06-10 14:00"
    assert decision.reasons(NOON + 2 * HOUR, Manners(), Seen(), Asked(NOON, NOON + 2 * HOUR)) == []
    [reason] = decision.reasons(NOON + 900 * HOUR, Manners(), Seen(), Asked(NOON))
    assert (reason.until, reason.words[-20:]) == (None, "until `shoal resume`")


def test_several_reasons_are_all_said_and_the_last_one_ends_the_pause() -> None:
    manners = Manners(schedule=NIGHT, mains=True)
    used_up = Reason("volume", "the 1 GB have passed", NOON + 12 * HOUR)
    reasons = Decision().reasons(NOON, manners, Seen(), Asked(NOON, NOON + HOUR), used_up)
    assert codes(reasons) == ["asked", "volume", "schedule"]
    assert pause_ends(reasons) == NOON + 12 * HOUR
    assert in_words(reasons).startswith("paused: you have asked for it")
    assert in_words(reasons).count("; ") == 2
    reasons = Decision().reasons(NOON, manners, Seen(on_battery=True))
    assert codes(reasons) == ["schedule", "on-battery"]
    assert pause_ends(reasons) is None, "nobody knows when the plug is put in"
    assert (pause_ends([]), in_words([])) == (None, "")
