"""Decides whether the node is paused: why, in words, and until when. Pure; the time and what was seen are passed in.

Rules:
- The node is paused while there is any reason. Each has a code for programs, and words for people.
- A person's `shoal pause` holds until its time is over or `shoal resume`, whatever else holds.
- What was seen of the machine (machine.py) may flap, and entering runs again costs traffic. So it pauses the node at
  once, but counts until it has been absent for LINGERS. That nobody uses the machine is damped by its own minutes.
- What cannot be known of a machine is no reason.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from shoal.node.base.options import NodeSettings
from shoal.node.base.schedule import Schedule

LINGERS = 60.0  # seconds
MINUTE = 60.0

ASKED, VOLUME, SCHEDULE, IN_USE, BATTERY, GPU = "asked", "volume", "schedule", "in-use", "on-battery", "gpu-in-use"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why the node is paused; `until` is when that ends by itself, in seconds since 1970, if it is known."""

    code: str
    words: str
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """A pause that a person has asked for; seconds since 1970, and no end if it holds until they resume.

    Without `since` the note of it was damaged, and nothing else is known.
    """

    since: float | None
    until: float | None = None

    def holds(self, now: float) -> bool:
        """Whether it is not over."""
        return self.until is None or now < self.until


@dataclass(frozen=True, slots=True)
class Manners:
    """The owner's rules."""

    schedule: Schedule | None = None
    idle: int = 0  # minutes
    mains: bool = False
    gpu: bool = False

    @classmethod
    def of(cls, settings: NodeSettings) -> Manners:
        """Those of a node with these settings."""
        return cls(settings.schedule, settings.only_when_idle, settings.only_on_mains, settings.yield_gpu)


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of the machine; None: it is not looked at, or cannot be known here."""

    used_at: float | None = None  # when somebody has last used it, in seconds since 1970
    use: str = ""  # what that was, in words
    on_battery: bool | None = None
    gpu_users: tuple[str, ...] | None = None  # other processes on a GPU, in words


class Decision:
    """Decides again and again; keeps only what it needs for LINGERS."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[float, Reason]] = {}  # what was seen of the machine: when last, and as what

    def reasons(
        self, now: float, manners: Manners, seen: Seen, asked: Asked | None = None, used_up: Reason | None = None
    ) -> list[Reason]:
        """All reasons why the node is paused now; none if it is not. `used_up` is that of the daily volume."""
        found = [_asked(asked)] if asked is not None and asked.holds(now) else []
        found += [used_up] if used_up is not None else []
        found += _by_clock(now, manners)
        return found + self._damped(now, manners, _by_machine(now, manners, seen))

    def _damped(self, now: float, manners: Manners, found: list[Reason]) -> list[Reason]:
        wanted = {BATTERY: manners.mains, GPU: manners.gpu}
        self._held = {
            code: (at, reason)
            for code, (at, reason) in self._held.items()
            if wanted.get(code) and 0 <= now - at < LINGERS
        }
        self._held |= {each.code: (now, each) for each in found if each.code in wanted}
        present = {each.code for each in found}
        ending = [
            replace(reason, words=f"{reason.words}, until a moment ago", until=at + LINGERS)
            for at, reason in self._held.values()
            if reason.code not in present
        ]
        return found + ending


def pause_ends(reasons: list[Reason]) -> float | None:
    """When the last reason ends by itself; None if that is not known of all of them, or there are none."""
    ends = [each.until for each in reasons]
    return max((end for end in ends if end is not None), default=None) if None not in ends else None


def in_words(reasons: list[Reason]) -> str:
    """The reasons in a phrase that begins with "paused"; empty if there are none."""
    return f"paused: {'; '.join(each.words for each in reasons)}" if reasons else ""


def local_time(at: float) -> str:
    """A time on the local clock, for people."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def _asked(asked: Asked) -> Reason:
    if asked.since is None:
        return Reason(ASKED, "you have asked for it, but the note of when is damaged; until `shoal resume`")
    end = f"until {local_time(asked.until)}" if asked.until is not None else "until `shoal resume`"
    return Reason(ASKED, f"you have asked for it at {local_time(asked.since)}, {end}", asked.until)


def _by_clock(now: float, manners: Manners) -> list[Reason]:
    if manners.schedule is None or manners.schedule.is_open(now):
        return []
    opens = manners.schedule.opens_at(now)
    words = f"it is outside the hours of this node ({manners.schedule}, --schedule), which begin at {local_time(opens)}"
    return [Reason(SCHEDULE, words, opens)]


def _by_machine(now: float, manners: Manners, seen: Seen) -> list[Reason]:
    found = []
    if manners.idle and seen.used_at is not None and now - seen.used_at < MINUTE * manners.idle:
        free_at = seen.used_at + MINUTE * manners.idle
        words = f"this machine is in use, by {seen.use}; it must be idle for {manners.idle} min (--only-when-idle)"
        found.append(Reason(IN_USE, words, free_at))
    if manners.mains and seen.on_battery:
        found.append(Reason(BATTERY, "this machine runs on its battery (--only-on-mains)"))
    if manners.gpu and seen.gpu_users:
        found.append(Reason(GPU, f"the GPU is used by {', '.join(seen.gpu_users)} (--yield-gpu)"))
    return found
