"""The hours in which a node may work, as "22:00-07:00" or "Mon-Fri 22:00-07:00, Sat-Sun 00:00-24:00". Pure.

Rules:
- Hours are those of the local clock, as it shows them: where the clock is put forward, an hour is missing, and where it
  is put back, an hour that is shown twice counts twice.
- Hours that end before they begin go over midnight. Their days are those on which they begin.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
DAY = 24 * 60  # minutes
AHEAD = 15  # days in which hours of one weekday begin at least once, as the clock may skip them in a week
MOST = 32  # hours in a schedule, as it is one line of config.toml and of each message about it
HOURS = re.compile(r"(?:([A-Za-z]{3})(?:-([A-Za-z]{3}))? +)?(\d{1,2}):(\d{2})-(\d{1,2}):(\d{2})")


@dataclass(frozen=True, slots=True)
class Hours:
    """From `begin` to `end`, in minutes since midnight, on the days (0 is Monday) from `first` to `last`."""

    begin: int
    end: int
    first: int = 0
    last: int = 6

    def has(self, weekday: int, minute: int) -> bool:
        """Whether a minute of a day is among them."""
        if self.begin < self.end:
            return self._begin_on(weekday) and self.begin <= minute < self.end
        late, early = minute >= self.begin, minute < self.end
        return (late and self._begin_on(weekday)) or (early and self._begin_on((weekday - 1) % 7))

    def _begin_on(self, weekday: int) -> bool:
        return (weekday - self.first) % 7 <= (self.last - self.first) % 7

    def __str__(self) -> str:
        last = f"-{DAYS[self.last]}" if self.last != self.first else ""
        days = "" if (self.first, self.last) == (0, 6) else f"{DAYS[self.first]}{last} "
        return f"{days}{_clock(self.begin)}-{_clock(self.end)}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """Hours, of which any may be the present one."""

    hours: tuple[Hours, ...]

    def is_open(self, now: float, zone: tzinfo | None = None) -> bool:
        """Whether `now` (seconds since 1970) is among the hours; `zone` is the system's by default."""
        local = datetime.fromtimestamp(now, zone)
        return any(each.has(local.weekday(), 60 * local.hour + local.minute) for each in self.hours)

    def opens_at(self, now: float, zone: tzinfo | None = None) -> float:
        """When hours begin next, after `now`, in seconds since 1970."""
        today = datetime.fromtimestamp(now, zone).date()
        for ahead in range(AHEAD):
            day = today + timedelta(days=ahead)
            begins = [begin for each in self.hours for begin in _shown(day, each.begin, zone)] + _shifts(day, zone)
            if found := [begin for begin in begins if begin > now and self.is_open(begin, zone)]:
                return min(found)
        raise AssertionError(f"no hours of {self} begin within {AHEAD} days")

    def __str__(self) -> str:
        return ", ".join(map(str, self.hours))


def _shown(day: date, minute: int, zone: tzinfo | None) -> set[float]:
    """When the clock shows a minute of a day: twice where it is put back. Where it is put forward, two other times."""
    local = datetime.combine(day, time(minute // 60, minute % 60), zone)
    return {local.replace(fold=fold).timestamp() for fold in (0, 1)}


def _shifts(day: date, zone: tzinfo | None) -> list[float]:
    """When on that day the clock is put forward or back, as hours may begin then that begin at a minute not shown."""
    early, late = (int(max(_shown(each, 0, zone))) for each in (day, day + timedelta(days=1)))
    before = _offset(early, zone)
    if _offset(late, zone) == before:
        return []
    while late - early > 1:
        middle = (early + late) // 2
        early, late = (middle, late) if _offset(middle, zone) == before else (early, middle)
    return [late]


def _offset(at: float, zone: tzinfo | None) -> timedelta:
    return datetime.fromtimestamp(at, zone).replace(tzinfo=None) - datetime.fromtimestamp(at, UTC).replace(tzinfo=None)


def parse_schedule(text: str) -> Schedule:
    """A schedule as `str` writes it; ValueError, with words for people, if `text` is none."""
    parts = text.split(",")
    if len(parts) > MOST:
        raise ValueError(f"{len(parts)} hours with commas between: give at most {MOST}")
    return Schedule(tuple(_parse_hours(part.strip()) for part in parts))


def _parse_hours(text: str) -> Hours:
    found = HOURS.fullmatch(text)
    if found is None:
        raise ValueError(f"'{text}' is no hours: write 22:00-07:00, or Mon-Fri 22:00-07:00, and several with commas")
    first, last, *clock = found.groups()
    begin, end = _minutes(text, *clock[:2]), _minutes(text, *clock[2:])
    if begin in (end, DAY):
        raise ValueError(f"'{text}' has no length: a whole day is 00:00-24:00")
    if first is None:
        return Hours(begin, end)
    return Hours(begin, end, _day(first), _day(last or first))


def _minutes(text: str, hour: str, minute: str) -> int:
    found = 60 * int(hour) + int(minute)
    if int(minute) >= 60 or found > DAY:
        raise ValueError(f"'{text}': a clock shows 00:00 to 24:00")
    return found


def _day(text: str) -> int:
    if text.capitalize() not in DAYS:
        raise ValueError(f"'{text}' is no day: write {', '.join(DAYS)}")
    return DAYS.index(text.capitalize())


def _clock(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"
