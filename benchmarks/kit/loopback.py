"""The bytes that the loopback interface has carried, headers included."""

from __future__ import annotations

from pathlib import Path

COUNTERS = Path("/proc/net/dev")


def carried() -> int | None:
    """Bytes since the machine started; None on systems other than Linux."""
    if not COUNTERS.exists():
        return None
    line = next(line for line in COUNTERS.read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[0])
