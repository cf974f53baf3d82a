"""Parses and prints rates, volumes and durations as people write them: `20Mbit` and `2.5MB/s` are the same rate.

Links are sold in bits and volumes in bytes. `20M` alone could be either, so a unit is required.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from shoal.node.base.options import MIN_PER_DAY, MIN_RATE, UsageError

PREFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
NUMBER = r"\s*(\d+(?:\.\d+)?)\s*((?i:[kmgt]i?)?)"
RATE = NUMBER + r"(?:((?i:bits?(?:/s|ps)?)|bps)|B(?:ps|/s)?|bytes?(?:/s)?)\s*"  # `20Mb` could be either
SECONDS = {"s": 1, "min": 60, "m": 60, "h": 3600, "d": 86_400}
DURATION = r"\s*(\d+(?:\.\d+)?)\s*(s|min|m|h|d)\s*"
MOST_SECONDS = 366 * 86_400
VOLUME = NUMBER + r"(?:B|bytes?)\s*"


def parse_rate(flag: str, text: str) -> int:
    """A rate in bytes a second; UsageError if `text` is none, or less than MIN_RATE."""
    found = re.fullmatch(RATE, text)
    if found is None:
        raise UsageError(
            f"{flag} {text} is no rate: write it in bits, as 20Mbit, or in bytes, as 2.5MB/s", code="bad-value"
        )
    number, prefix, bits = found.groups()
    rate = float(number) * PREFIXES[prefix.lower()] / (8 if bits else 1)
    if rate < MIN_RATE:
        raise UsageError(
            f"{flag} {text} is too little to take part in anything: at least {as_rate(MIN_RATE)}", code="bad-value"
        )
    return round(rate)


def parse_volume(flag: str, text: str) -> int:
    """A volume in bytes; UsageError if `text` is none, or less than MIN_PER_DAY."""
    found = re.fullmatch(VOLUME, text)
    if found is None:
        raise UsageError(f"{flag} {text} is no volume: write it in bytes, as 20GB or 500MB", code="bad-value")
    volume = float(found[1]) * PREFIXES[found[2].lower()]
    if volume < MIN_PER_DAY:
        raise UsageError(
            f"{flag} {text} is too little to take part in anything: at least {as_volume(MIN_PER_DAY)}", code="bad-value"
        )
    return round(volume)


def parse_duration(flag: str, text: str) -> float:
    """Seconds, from `90s`, `20min`, `2h` or `1d`; UsageError if `text` is no duration, 0 or more than a year."""
    found = re.fullmatch(DURATION, text)
    if found is None:
        raise UsageError(f"{flag} {text} is no duration: write 90s, 20min, 2h or 1d", code="bad-value")
    seconds = float(found[1]) * SECONDS[found[2]]
    if not 0 < seconds <= MOST_SECONDS:
        raise UsageError(f"{flag} {text}: give more than nothing, and at most a year", code="bad-value")
    return seconds


def write_rate(rate: int) -> str:
    """A rate in bytes a second as `parse_rate` reads it, exactly."""
    bits = _exact(8 * rate)
    return f"{bits}bit" if bits[-1].isalpha() else f"{rate}B/s"


def write_volume(volume: int) -> str:
    """A volume in bytes as `parse_volume` reads it, exactly."""
    return f"{_exact(volume)}B"


def as_rate(rate: float) -> str:
    """A rate in bytes a second, printed in bits."""
    return f"{_scaled(8 * rate)}bit/s"


def as_volume(volume: float) -> str:
    """A volume in bytes, printed with decimal units."""
    return f"{_scaled(volume)}B"


def as_duration(seconds: float) -> str:
    """Seconds, printed in the largest unit that says enough."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def limits_in_words(limits: Mapping[str, Any]) -> str | None:
    """The owner's limits (`Limits` of the API) in a phrase; None if there are none."""
    up, down, volume = limits.get("max_up"), limits.get("max_down"), limits.get("max_per_day")
    said = [f"{as_rate(up)} up"] if up else []
    said += [f"{as_rate(down)} down"] if down else []
    said += [f"{as_volume(volume)} a day, {as_volume(limits.get('used_today') or 0)} used today"] if volume else []
    return ", ".join(said) or None


def _exact(amount: int) -> str:
    """A whole number with the largest unit in which it is one."""
    for unit, factor in (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if amount and amount % factor == 0:
            return f"{amount // factor}{unit}"
    return str(amount)


def _scaled(amount: float) -> str:
    for unit in ("", "k", "M", "G"):
        if amount < 1000:
            return f"{amount:.4g} {unit}"
        amount /= 1000
    return f"{amount:.4g} T"


def size(count: float) -> str:
    """A number of bytes, printed with binary units."""
    amount, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{amount:.0f} B" if units[0] == "B" else f"{amount:.1f} {units[0]}"
